// Making elements. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return made;
}

export const h = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
export const $ = (id) => document.getElementById(id);

// The body of a section, filled anew; the section is hidden where there is nothing to show.
export function show(id, ...children) {
  const kept = children.flat(Infinity).filter((child) => child !== null && child !== undefined);
  $(id).hidden = kept.length === 0;
  $(id).querySelector(".body").replaceChildren(...kept);
}

// A table; columns are [heading, is a number], the first cell of a row is its header.
export function table(columns, rows, caption = null) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption || columns[0][0] },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([text, number]) => h("th", { scope: "col", class: number ? "n" : null }, text)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => (cell instanceof Element && /^T[DH]$/.test(cell.tagName))
        ? cell
        : h(place ? "td" : "th", { scope: place ? null : "row", class: columns[place][1] ? "n" : null }, cell)))))));
}
