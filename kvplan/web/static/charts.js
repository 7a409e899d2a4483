// Pictures as inline SVG, drawn as wide as their place so that text stays readable on a phone.

import { s, h } from "./dom.js";
import { factor, gib, shortTokens, tokens } from "./format.js";

const SERIES = 8;
const picture = (width, height, label, ...children) =>
  s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label }, ...children);

// One bar of parts [name, bytes, spread, class] and its legend.
export function memoryBar(width, total, parts, title) {
  let at = 0;
  const rects = parts.filter((part) => part.bytes > 0).map((part) => {
    const length = Math.min(width - at, (width * part.bytes) / total);
    const made = s("rect", { x: at, y: 0, width: Math.max(0, length - 1), height: 34, class: `fill ${part.look}` },
      s("title", {}, `${part.name}: ${gib(part.bytes)}`));
    at += length;
    return made;
  });
  const label = `${title}: ${parts.map((part) => `${part.name} ${gib(part.bytes)}`).join(", ")}`;
  return picture(width, 34, label, ...rects);
}

export function legend(parts) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Memory by use" }, h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "use"), h("th", { scope: "col", class: "n" }, "bytes"),
      h("th", { scope: "col", class: "n" }, "from, to"), h("th", { scope: "col" }, "how"))),
    h("tbody", {}, parts.map((part) => h("tr", {},
      h("th", { scope: "row", class: "name" }, h("span", { class: `key ${part.look}`, "aria-hidden": "true" }), part.name),
      h("td", { class: "n" }, gib(part.bytes)), h("td", { class: "n" }, part.spread || ""),
      h("td", { class: "formula says" }, part.says || ""))))));
}

export const look = (place) => `s${place % SERIES}`;

// Each step is a line of text over a bar that reaches from its bytes before to its bytes after, on one log scale.
export function waterfall(width, steps) {
  const values = steps.flatMap((step) => [step.stored_bytes, step.read_bytes_per_step]).filter((value) => value > 0);
  if (!values.length) return null;
  const low = Math.log2(Math.min(...values)) - 1.5;
  const high = Math.log2(Math.max(...values));
  const x = (value) => value > 0 ? (width * (Math.log2(value) - low)) / Math.max(1, high - low) : 0;
  const looks = { baseline: "s6", checkpoint: "s0", "what-if": "s4", flag: "s1" };
  const row = 50;
  const drawn = steps.flatMap((step, place) => {
    const before = place ? steps[place - 1] : step;
    const top = place * row;
    const change = place ? ` (${factor(step.stored_bytes, before.stored_bytes)})` : "";
    const [left, right] = [x(step.stored_bytes), x(before.stored_bytes)].sort((a, b) => a - b);
    return [
      s("text", { x: 0, y: top + 13 }, clipped(step.title, width - 150)),
      s("text", { x: width, y: top + 13, "text-anchor": "end" }, `${gib(step.stored_bytes)}${change}`),
      s("rect", { x: 0, y: top + 19, width, height: 13, class: "fill spare" }),
      s("rect", { x: 0, y: top + 19, width: x(step.stored_bytes), height: 13, class: `fill ${looks[step.decided_by]}` }),
      place && right - left > 1
        ? s("rect", { x: left, y: top + 19, width: right - left, height: 13, class: `fill ${looks[step.decided_by]}`, opacity: ".35" }) : null,
      s("rect", { x: 0, y: top + 34, width: x(step.read_bytes_per_step), height: 4, class: "fill s2" }),
    ];
  });
  const label = `Stored bytes, logarithmic: ${steps.map((step) => `${step.title} ${gib(step.stored_bytes)}`).join("; ")}`;
  return picture(width, steps.length * row, label, ...drawn.filter(Boolean));
}

function clipped(text, width) {
  const most = Math.max(10, Math.floor(width / 6.4));
  return text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
}

// Stored and read bytes against context, both logarithmic, with the context asked for marked.
export function curve(width, found, asked) {
  const height = 300, left = 70, right = 14, top = 12, bottom = 42;
  const read = found.read_bytes_per_step.some((value, place) => value !== found.stored_bytes[place]);
  const xs = found.contexts.map(Math.log2);
  const all = [...found.stored_bytes, ...(read ? found.read_bytes_per_step : [])].filter((value) => value > 0);
  if (xs.length < 2 || !all.length) return null;
  const [x0, x1] = [xs[0], xs[xs.length - 1]];
  const [y0, y1] = [Math.floor(Math.log2(Math.min(...all))), Math.ceil(Math.log2(Math.max(...all)) + 0.01)];
  const x = (value) => left + ((width - left - right) * (Math.log2(value) - x0)) / (x1 - x0);
  const y = (value) => top + ((height - top - bottom) * (y1 - Math.log2(Math.max(value, 1)))) / Math.max(1, y1 - y0);
  const grid = [];
  const yStep = Math.ceil((y1 - y0) / 6);
  for (let power = y0; power <= y1; power += yStep) {
    grid.push(s("line", { x1: left, x2: width - right, y1: y(2 ** power), y2: y(2 ** power), class: "axis" }),
      s("text", { x: left - 8, y: y(2 ** power) + 4, "text-anchor": "end", class: "soft" }, gib(2 ** power)));
  }
  const xStep = Math.ceil((x1 - x0) / Math.max(2, Math.floor((width - left) / 75)));
  for (let power = Math.ceil(x0); power <= x1; power += xStep) {
    grid.push(s("line", { x1: x(2 ** power), x2: x(2 ** power), y1: top, y2: height - bottom, class: "axis" }),
      s("text", { x: x(2 ** power), y: height - bottom + 17, "text-anchor": "middle", class: "soft" }, shortTokens(2 ** power)));
  }
  const line = (values, kind) => s("path", {
    d: values.map((value, place) => `${place ? "L" : "M"}${x(found.contexts[place]).toFixed(1)} ${y(value).toFixed(1)}`).join(""),
    class: `stroke ${kind}`,
  });
  const marks = [];
  const place = found.contexts.indexOf(asked);
  if (place >= 0) {
    marks.push(s("line", { x1: x(asked), x2: x(asked), y1: top, y2: height - bottom, class: "mark" }),
      s("circle", { cx: x(asked), cy: y(found.stored_bytes[place]), r: 5, class: "dot s0" }),
      read ? s("circle", { cx: x(asked), cy: y(found.read_bytes_per_step[place]), r: 5, class: "dot s1" }) : null);
  }
  const label = `Cache of the batch from ${tokens(found.contexts[0])} to ${tokens(found.contexts[found.contexts.length - 1])} tokens`
    + `, ${gib(found.stored_bytes[0])} to ${gib(found.stored_bytes[found.stored_bytes.length - 1])} stored`;
  return [
    picture(width, height, label, ...grid, line(found.stored_bytes, "s0"),
      ...(read ? [line(found.read_bytes_per_step, "s1 dashed")] : []), ...marks.filter(Boolean),
      s("text", { x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle", class: "soft" }, "stored tokens of one sequence, both scales logarithmic")),
    h("p", { class: "hint" }, h("span", { class: "key s0", "aria-hidden": "true" }), "stored",
      ...(read ? ["\u2003", h("span", { class: "key s1", "aria-hidden": "true" }), "read in one decode step"] : [" and read in one decode step: the same here"])),
  ];
}
