// The form, the address and the question: what differs from the form's defaults is in the address after `#`.

const WHOLE = ["batch", "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
  "decode_context_parallel_size", "max_num_seqs", "max_num_batched_tokens"];
const TEXT = ["model", "ctx", "gpu", "kv_cache_dtype", "gpu_memory_utilization", "available_memory"];
const RUNTIME = ["evict", "sparse_read", "share_prefix", "offload"];
const CACHE = ["model", "config", "assume_dense", "ctx", "batch", "kv_cache_dtype", ...RUNTIME, "block_size", "what_if"];

const fields = (form) => [...form.elements].filter((field) => field.name);
const initial = (field) => field.type === "checkbox" ? field.defaultChecked
  : field.tagName === "SELECT" ? "" : field.defaultValue;
const current = (field) => field.type === "checkbox" ? field.checked : field.value;

export function toAddress(form) {
  const found = new URLSearchParams();
  for (const field of fields(form)) {
    const value = current(field);
    if (value !== initial(field)) found.set(field.name, field.type === "checkbox" ? (value ? "1" : "0") : value);
  }
  return found.toString();
}

export function fromAddress(form, text) {
  const given = new URLSearchParams(text);
  for (const field of fields(form)) {
    const value = given.get(field.name);
    if (field.type === "checkbox") field.checked = value === null ? initial(field) : value === "1";
    else field.value = value === null ? initial(field) : value;
  }
}

function settings(text) {
  const found = {};
  for (const line of text.split("\n").map((each) => each.trim()).filter(Boolean)) {
    const [, name, value] = line.match(/^-*([^\s=]+)(?:[\s=]+(.*))?$/) || [null, line, ""];
    found[name] = value === undefined ? true : value;
  }
  return found;
}

// Raises an Error with a sentence for a config.json that is no JSON.
export function toQuestion(form) {
  const value = (name) => form.elements[name].value.trim();
  const found = {};
  for (const name of TEXT) if (value(name)) found[name] = value(name);
  for (const name of WHOLE) if (value(name)) found[name] = /^\d{1,15}$/.test(value(name)) ? Number(value(name)) : value(name);
  if (value("config")) {
    found.config = parsedConfig(value("config"));
    delete found.model;
  }
  if (form.elements.assume_dense.checked) found.assume_dense = true;
  if (value("block_size")) found.block_size = value("block_size");
  if (value("engine")) {
    found.engine = value("version") ? `${value("engine")}@${value("version")}` : value("engine");
    if (form.elements.enable_expert_parallel.checked) found.enable_expert_parallel = true;
    if (value("settings")) found.settings = settings(value("settings"));
    return found;
  }
  for (const name of RUNTIME) if (value(name)) found[name] = value(name);
  if (value("what_if")) found.what_if = value("what_if").split(/\s+/);
  return found;
}

function parsedConfig(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw new Error(`config.json: found something that is no JSON (${error.message}), expected the whole file`);
  }
  if (found === null || Array.isArray(found) || typeof found !== "object") {
    throw new Error("config.json: found no object at the top, expected the whole file");
  }
  return found;
}

// The part of a question that decides the bytes of the cache.
export function cachePart(question) {
  const kept = Object.fromEntries(Object.entries(question).filter(([name]) => CACHE.includes(name)));
  if (question.engine) delete kept.block_size;
  return kept;
}
