// Start-up: lists, theme, tabs, and what makes the page ask again.

import { list } from "./api.js";
import { $, h } from "./dom.js";
import { tokens } from "./format.js";
import { draw, update } from "./plan.js";
import { start as startLog } from "./log.js";
import { fromAddress } from "./state.js";

const form = $("question");

function theme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const stored = localStorage.getItem("theme");
  if (stored === "dark" || stored === "light") root.dataset.theme = stored;
  const label = () => $("theme").setAttribute("aria-pressed", String(isDark()));
  $("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    label();
  });
  system.addEventListener("change", label);
  label();
}

function tabs() {
  const all = [...document.querySelectorAll('[role="tab"]')];
  const select = (tab) => {
    for (const each of all) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      $(each.getAttribute("aria-controls")).hidden = !chosen;
    }
    draw();
  };
  for (const [place, tab] of all.entries()) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = all[(place + step + all.length) % all.length];
      next.focus();
      select(next);
    });
  }
}

async function lists() {
  const [models, gpus, engines] = await Promise.all(["models", "gpus", "engines"].map(list));
  const names = new Map();
  for (const model of models.models) for (const name of [model.id, ...model.hf_ids]) names.set(name.toLowerCase(), model);
  $("models").replaceChildren(...models.models.flatMap((model) => [model.id, ...model.hf_ids]).map((value) => h("option", { value })));
  $("gpus").replaceChildren(...gpus.gpus.map((gpu) => h("option", { value: gpu.slug }, `${gpu.name}, ${gpu.memory}`)));
  $("engine").append(...engines.engines.map((engine) => h("option", { value: engine.name }, engine.name)));
  const dtypes = () => {
    const engine = engines.engines.find((each) => each.name === form.elements.engine.value);
    const known = ["auto", ...(engine ? engine.kv_dtypes : engines.kv_dtypes)];
    $("dtypes").replaceChildren(...known.map((value) => h("option", { value })));
  };
  const hint = () => {
    const model = names.get(form.elements.model.value.trim().toLowerCase());
    $("model-hint").textContent = model
      ? `${model.layers} layers, ${model.max_context === null ? "no declared limit" : `up to ${tokens(model.max_context)} tokens`}: ${model.traits.join(", ")}`
      : `${models.models.length} models known; type a part of a name`;
  };
  form.addEventListener("input", () => { dtypes(); hint(); });
  return () => { dtypes(); hint(); };
}

function open() {
  fromAddress(form, location.hash.slice(1));
  for (const box of form.querySelectorAll("details")) {
    const field = [...box.querySelectorAll("input, textarea")].some((each) => each.type === "checkbox" ? each.checked : each.value);
    if (field) box.open = true;
  }
}

theme();
tabs();
startLog();
const refresh = await lists();
open();
refresh();
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => update(form));
form.addEventListener("reset", () => setTimeout(() => { form.querySelectorAll("details").forEach((box) => { box.open = false; }); refresh(); update(form); }));
addEventListener("hashchange", () => { open(); refresh(); update(form); });
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
await update(form);
