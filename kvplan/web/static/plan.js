// One change of the form: ask, show the verdict, then the pictures. A newer change ends the older one's requests.

import { ask } from "./api.js";
import { curve, waterfall } from "./charts.js";
import { $, h, show, table } from "./dom.js";
import { gib } from "./format.js";
import { command, components, figures, help, matrix, memory, notes } from "./sections.js";
import { cachePart, toAddress, toQuestion } from "./state.js";

const BATCHES = [1, 4, 16, 64, 256];
let running = new AbortController();
let drawn = null;

export async function update(form) {
  history.replaceState(null, "", `#${toAddress(form)}`);
  $("techniques").disabled = form.elements.engine.value !== "";
  $("techniques-hint").textContent = form.elements.engine.value
    ? "With an engine its own flags count; these are composed without one." : "Composed analytically, without an engine.";
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const started = performance.now();
  try {
    const question = toQuestion(form);
    const [answer, cli] = await Promise.all([ask("estimate", question, signal), ask("command", question, signal)]);
    showAnswer(answer, cli.cli);
    document.body.dataset.milliseconds = String(Math.round(performance.now() - started));
    await pictures(question, answer, signal);
    document.body.dataset.settled = location.hash;
  } catch (error) {
    if (error.name !== "AbortError") refuse(form, error.message);
  }
}

function showAnswer(answer, cli) {
  clearRefusal();
  const fits = answer.engine ? answer.engine.refused === null : answer.fit ? answer.fit.fits : null;
  $("verdict").className = fits === null ? "" : fits ? "good" : "bad";
  $("verdict").textContent = answer.verdict;
  drawn = { answer };
  $("answer").hidden = false;
  show("facts", figures(answer));
  show("components", components(answer));
  show("help", help(answer));
  show("notes", notes(answer));
  show("commands", command("kvplan", cli), answer.engine_command ? command(answer.engine.name, answer.engine_command)
    : [h("p", { class: "hint" }, "Choose an engine to see its start command.")]);
  draw();
}

async function pictures(question, answer, signal) {
  const part = cachePart(question);
  const { config, model, ctx, ...options } = part;
  const context = answer.context_tokens;
  const compared = { ...options, contexts: [...new Set([context, answer.model.max_context || context])], curves: true, ...(config ? { config } : { models: [model] }) };
  const contexts = [...new Set([16, 8, 4, 2, 1].map((by) => Math.max(1, Math.round(context / by))))];
  const batches = [...new Set([...BATCHES, question.batch || 1])].sort((a, b) => a - b);
  const [steps, compares, grid] = await Promise.allSettled([
    ask("explain", { ...part, ctx: context }, signal), ask("compare", compared, signal), ask("matrix", { ...question, contexts, batches }, signal),
  ]);
  signal.throwIfAborted();
  drawn.steps = steps.value?.steps;
  drawn.curve = compares.value?.curves[0];
  draw();
  for (const [id, found] of [["waterfall", steps], ["curve", compares]]) if (found.reason) say(id, found.reason);
  if (grid.reason) say("matrix", grid.reason);
  else show("matrix", matrix(grid.value, { context, batch: answer.batch }));
}

const say = (id, error) => show(id, h("p", { class: "hint" }, error.message));

// Pictures take the width of their place, so they are drawn again when that changes.
export function draw() {
  if (!drawn) return;
  $("memory").hidden = false;
  const room = (id) => Math.max(240, $(id).querySelector(".body").clientWidth);
  show("memory", memory(drawn.answer, room("memory")));
  if (drawn.steps) {
    $("waterfall").hidden = false;
    show("waterfall", waterfall(room("waterfall"), drawn.steps), waterfallKey(drawn.steps), stepsTable(drawn.steps));
  }
  if (drawn.curve) {
    $("curve").hidden = false;
    show("curve", curve(room("curve"), drawn.curve, drawn.answer.context_tokens));
  }
}

function waterfallKey(steps) {
  const looks = { baseline: "s6", checkpoint: "s0", "what-if": "s4", flag: "s1" };
  const used = [...new Set(steps.map((step) => step.decided_by))];
  return h("p", { class: "hint" }, used.flatMap((name) => [h("span", { class: `key ${looks[name]}`, "aria-hidden": "true" }), `${name}\u2003`]),
    h("span", { class: "key s2", "aria-hidden": "true" }), "thin: read in one decode step. Logarithmic; pale: what the step saves.");
}

function stepsTable(steps) {
  return h("details", {}, h("summary", {}, "As a table"),
    table([["after"], ["decided by"], ["stored", true], ["read/step", true]],
      steps.map((step) => [step.title, step.decided_by, gib(step.stored_bytes), gib(step.read_bytes_per_step)]), "Steps of the waterfall"));
}

// The sentence begins with the field it is about, as an option or a name: mark that field.
function refuse(form, sentence) {
  clearRefusal();
  $("error").textContent = sentence;
  $("error").hidden = false;
  $("answer").classList.add("stale");
  $("verdict").className = "";
  $("verdict").textContent = "Not answered.";
  const name = sentence.split(":")[0].replace(/^--/, "").replaceAll("-", "_").replace("config.json", "config").replace("max_model_len", "ctx");
  const field = form.elements[name];
  if (!field || !field.setAttribute) return;
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-describedby", "error");
  const box = field.closest("details");
  if (box) box.open = true;
}

function clearRefusal() {
  $("error").hidden = true;
  $("answer").classList.remove("stale");
  for (const field of document.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-describedby");
  }
}
