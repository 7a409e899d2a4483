// The parts of an estimate: memory, figures, components, help, notes, commands.

import { h, table } from "./dom.js";
import { legend, look, memoryBar } from "./charts.js";
import { both, gib, tokens } from "./format.js";

const spread = (low, high) => (low === high ? "" : `${gib(Math.max(0, low))} to ${gib(Math.max(0, high))}`);

// Parts of one GPU's memory: of each pipeline stage under an engine, or by the plain rule beside a device.
function memories(answer) {
  if (answer.memory) {
    const budget = answer.memory;
    return budget.stages.map((stage, number) => {
      const parts = stage.terms.map((term, place) => ({
        name: term.name, bytes: term.nominal, spread: spread(term.low, term.high), says: term.says, look: look(place + 1),
      }));
      parts.unshift({ name: "KV cache", bytes: Math.max(0, stage.nominal), spread: spread(stage.low, stage.high), says: budget.identity, look: "s0" });
      const left = budget.total_bytes - parts.reduce((sum, part) => sum + part.bytes, 0);
      parts.push(left >= 0 ? { name: "not used", bytes: left, look: "spare" } : { name: "missing", bytes: 0, says: `${gib(-left)} more than the GPU has`, look: "spare" });
      const total = budget.total_bytes + Math.max(0, -left);
      return { title: budget.stages.length > 1 ? `A GPU of stage ${number + 1}` : "One GPU", total, parts };
    });
  }
  if (!answer.fit) return [];
  const fit = answer.fit;
  const cache = fit.kv_bytes_per_sequence_per_gpu * answer.batch;
  const free = fit.usable_bytes_per_gpu - fit.weights_bytes_per_gpu;
  const parts = [
    { name: "weights", bytes: fit.weights_bytes_per_gpu, says: "split evenly", look: "s1" },
    { name: cache > free ? "KV cache: too large" : "KV cache", bytes: cache, says: `${tokens(answer.batch)} x ${gib(fit.kv_bytes_per_sequence_per_gpu)}`, look: cache > free ? "s3" : "s0" },
    { name: "free for more cache", bytes: Math.max(0, free - cache), says: "usable, less both", look: "s5" },
    { name: "kept for the engine", bytes: fit.memory_bytes_per_gpu - fit.usable_bytes_per_gpu, says: "activations, graphs, buffers", look: "spare" },
  ];
  return [{ title: "One GPU", total: Math.max(fit.memory_bytes_per_gpu, parts.reduce((sum, part) => sum + part.bytes, 0)), parts }];
}

export function memory(answer, width) {
  return memories(answer).flatMap(({ title, total, parts }) => [
    h("p", { class: "hint" }, `${title}: ${both(answer.memory ? answer.memory.total_bytes : answer.fit.memory_bytes_per_gpu)}`),
    memoryBar(width, total, parts, title),
    legend(parts),
  ]).concat(answer.feasible && answer.memory && answer.memory.share !== null
    ? [h("p", { class: "hint" }, `Memory flag, now ${answer.memory.share}: ${answer.feasible.says}.`)] : []);
}

export function figures(answer) {
  const { cache, engine, fit } = answer;
  const items = [
    ["needed", both(cache.needed_bytes), answer.batch > 1 ? `${tokens(answer.batch)} x ${gib(cache.needed_bytes_per_sequence)}` : "whole model, no rounding"],
    ["read in a decode step", both(cache.read_bytes_per_step), null],
    ["one more token", `${tokens(cache.bytes_per_token_marginal)} B`, `${cache.growing_layers} of ${cache.total_layers} layers grow`],
    ["context", `${tokens(answer.context_tokens)} tokens`, answer.context_source],
    answer.weights && ["weights", both(answer.weights.bytes), answer.weights.source],
    answer.composition && ["stored after techniques", both(answer.composition.stored_bytes), answer.composition.applied.join(", ") || "none"],
    fit && ["full-length sequences", tokens(fit.max_full_length_sequences), "beside the weights"],
    fit && ["longest context for one", `${tokens(fit.longest_context_tokens)} tokens`, null],
    engine && ["tokens in the cache", engine.capacity_tokens === null ? "none" : tokens(engine.capacity_tokens), engine.log_line],
    engine && ["requests at once", engine.max_concurrency === null ? "none" : engine.max_concurrency.toFixed(2), `of ${tokens(engine.max_model_len)} tokens`],
    engine && ["reserved for one request", both(engine.reserved_bytes_one_request), `a rank, by ${engine.name} ${engine.version}`],
    engine && engine.num_blocks !== null && ["blocks", tokens(engine.num_blocks), `of ${[engine.bytes_per_block].flat().map(tokens).join(" / ")} B`],
  ].filter(Boolean);
  return h("dl", { class: "facts" }, items.map(([name, value, more]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null))));
}

export function components(answer) {
  const rows = answer.cache.components.map((part) => [
    part.name, part.kind.replaceAll("_", " "), part.dtype, String(part.layers),
    part.part === "state" ? "-" : tokens(part.entries), part.bytes_per_token ? tokens(part.bytes_per_token) : "-", both(part.bytes),
  ]);
  const groups = answer.engine && answer.engine.groups.length ? [
    h("p", { class: "hint" }, `As ${answer.engine.name} groups it:`),
    table([["group"], ["layers", true], ["tokens/block", true], ["B/block", true], ["blocks/request", true]],
      answer.engine.groups.map((group) => [group.kind, String(group.layers), tokens(group.block_tokens), tokens(group.bytes_per_block), tokens(group.blocks_per_request)]), "Cache groups")] : [];
  const pools = answer.engine && answer.engine.pools.length ? [
    table([["pool"], ["layers", true], ["slots", true], ["B/slot", true], ["size", true]],
      answer.engine.pools.map((pool) => [pool.name === answer.engine.binding ? `${pool.name} (binds)` : pool.name, String(pool.layers), tokens(pool.slots), tokens(pool.bytes_per_slot), gib(pool.bytes)]), "Pools")] : [];
  const how = answer.engine && answer.engine.derivation.length
    ? [h("details", {}, h("summary", {}, `How ${answer.engine.name} gets there`), h("ul", { class: "formula" }, answer.engine.derivation.map((line) => h("li", {}, line))))] : [];
  return [table([["part, one sequence"], ["kind"], ["dtype"], ["layers", true], ["entries", true], ["B/token", true], ["bytes", true]], rows, "Components of the cache"),
    h("details", {}, h("summary", {}, "Arithmetic and sources"), answer.cache.components.map(derivation)), ...groups, ...pools, ...how];
}

function derivation(part) {
  return h("div", { class: "formula" }, `${part.name} = ${part.derivation.formula} = ${tokens(part.bytes)} B`,
    h("ul", {}, part.derivation.inputs.map((input) => h("li", {}, `${input.name}: ${input.value} [${input.source}]`))));
}

export function help(answer) {
  if (!answer.changes || !answer.changes.length) return [];
  return [table([["flag"], ["effect"], ["cost"]],
    answer.changes.map((change) => [h("th", { scope: "row" }, h("code", {}, `${change.flag} ${change.value}`)), change.effect, change.cost]), "Changes that would help")];
}

// `*word*` is how kvplan's sentences stress a word.
const stressed = (text) => text.split(/\*(\w+)\*/).map((part, place) => (place % 2 ? h("em", {}, part) : part));

export function notes(answer) {
  return [
    answer.warnings.length ? h("ul", { class: "warning" }, answer.warnings.map((text) => h("li", {}, stressed(text)))) : null,
    answer.assumptions.length ? h("ul", {}, answer.assumptions.map((text) => h("li", {}, stressed(text)))) : null,
  ].filter(Boolean);
}

export function command(name, text) {
  const button = h("button", { type: "button", class: "quiet small", "aria-label": `Copy: ${name}` }, "Copy");
  const shown = h("pre", { tabindex: 0 }, text);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(shown);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return [h("p", { class: "hint" }, name), h("div", { class: "command" }, shown, button)];
}

export function matrix(grid, asked) {
  const most = grid.rows.some((row) => row.max_concurrency !== null);
  const columns = [["context", true], ...grid.batches.map((batch) => [`x ${tokens(batch)}`, true]), ...(most ? [["most at once", true]] : [])];
  const rows = grid.rows.map((row) => [
    h("th", { scope: "row", class: "n" }, tokens(row.context_tokens)),
    ...row.bytes.map((size, place) => h("td", {
      class: `n${size === null ? " no" : ""}${row.context_tokens === asked.context && grid.batches[place] === asked.batch ? " here" : ""}`,
    }, size === null ? h("span", { title: "does not fit" }, "no fit") : gib(size))),
    ...(most ? [h("td", { class: "n" }, row.max_concurrency === null ? "-" : String(Number(row.max_concurrency.toFixed(2))))] : []),
  ]);
  return [h("p", { class: "hint" }, `Cache ${grid.size}${grid.engine ? ` by ${grid.engine}` : ""}, by context and sequences at once.`), table(columns, rows, "Sizes by context and sequences")];
}
