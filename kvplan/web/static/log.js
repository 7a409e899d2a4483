// The log tab: an engine's start-up log, explained.

import { ask } from "./api.js";
import { memoryBar, legend, look } from "./charts.js";
import { $, h, table } from "./dom.js";
import { both, gib, tokens } from "./format.js";

const percent = (error) => (error === null ? "" : `${error >= 0 ? "+" : ""}${(100 * error).toFixed(1)} %`);
const size = (bytes) => (bytes === null ? "-" : bytes < 0 ? `-${gib(-bytes)}` : gib(bytes));
const figure = (value, unit) => (unit === "B" || unit === "bytes" ? gib(value) : Number.isInteger(value) ? tokens(value) : String(Number(value.toPrecision(6))));

export function start() {
  $("audit").addEventListener("submit", async (event) => {
    event.preventDefault();
    $("audit-error").hidden = true;
    $("log").removeAttribute("aria-invalid");
    const question = { log: $("log").value };
    for (const name of ["model", "gpu", "engine"]) {
      const value = $(`log-${name}`).value.trim();
      if (value) question[name] = value;
    }
    try {
      show(await ask("audit", question));
    } catch (error) {
      $("audit-answer").replaceChildren();
      $("audit-error").textContent = error.message;
      $("audit-error").hidden = false;
      $("log").setAttribute("aria-invalid", "true");
    }
  });
}

function show(audit) {
  const place = $("audit-answer");
  place.replaceChildren();
  const add = (title, ...children) => {
    const body = h("div", { class: "body" }, children);
    place.append(h("section", {}, h("h2", {}, title), body));
    return body;
  };
  const errors = audit.findings.some((finding) => finding.severity !== "note");
  place.append(h("p", { class: `verdict ${errors ? "bad" : "good"}` }, audit.verdict),
    h("p", { class: "hint" }, `${audit.model || "model unknown"} on ${audit.gpu}`
      + (audit.runs.length > 1 ? `; start ${audit.run_number} of ${audit.runs.length} in the log` : "")));
  if (audit.findings.length) add("What to change", audit.findings.map(finding));
  if (audit.memory.terms.length) memory(audit.memory, add);
  if (audit.checks.length) {
    add("Printed and predicted", table([["figure"], ["printed", true], ["predicted", true], ["off by", true], ["verdict"], ["line", true]],
      audit.checks.map((check) => [check.name, figure(check.observed, check.unit), figure(check.predicted, check.unit), percent(check.error),
        h("td", { class: check.verdict === "off" ? "bad-word" : "good-word" }, check.verdict), String(check.line)]), "Printed and predicted figures"));
  }
  if (audit.meaning) add("What the figure means", h("p", {}, audit.meaning.text || audit.meaning.rule));
  if (audit.naive) add("Why a simple formula differs", h("p", {}, audit.naive.formula), list(audit.naive.reasons));
  const notes = [...audit.warnings, ...audit.assumptions];
  if (audit.missing.length) notes.unshift(`not found in the log: ${audit.missing.join(", ")}`);
  if (notes.length) add("Taken for granted", list(notes));
}

const list = (texts) => h("ul", {}, texts.map((text) => h("li", {}, text)));

function finding(found) {
  const lines = found.lines.length ? ` (line ${found.lines.join(", ")})` : "";
  return h("div", { class: "finding" },
    h("h3", {}, h("span", { class: found.severity === "note" ? "good-word" : "bad-word" }, `${found.severity}: `), found.title),
    h("p", {}, `${found.says}${lines}`), h("p", {}, h("strong", {}, "Fix: "), found.fix),
    found.gain ? h("p", { class: "hint" }, `${found.gain.change}: ${tokens(found.gain.before)} to ${tokens(found.gain.after)} tokens`) : null);
}

function memory(found, add) {
  const terms = found.terms.map((term, place) => ({
    name: term.name, bytes: Math.max(0, term.observed ?? term.predicted ?? 0),
    spread: term.predicted === null ? "" : `predicted ${size(term.predicted)}`,
    says: [term.observed === null ? "not printed" : term.line ? `line ${term.line}` : "", term.says].filter(Boolean).join("; "), look: look(place),
  }));
  const used = terms.reduce((sum, term) => sum + term.bytes, 0);
  const total = Math.max(found.total_bytes || 0, used);
  if (total > used) terms.push({ name: "not used, or not printed", bytes: total - used, look: "spare" });
  const body = add("Memory of one GPU");
  body.append(h("p", { class: "hint" }, (found.total_bytes ? `${both(found.total_bytes)}, ${found.total_source}` : "total unknown")
    + (found.share === null ? "" : `; the engine's share is ${found.share}`)));
  body.append(memoryBar(Math.max(240, body.clientWidth), total || 1, terms, "Memory of one GPU"), legend(terms));
}
