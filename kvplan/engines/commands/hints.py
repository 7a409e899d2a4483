"""What a file name, a GGUF repository or an Ollama tag says about the model: a hint, the file's own header decides."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvplan.errors import InputError

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(
    r"[-._]((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|BF16|F16|F32|FP16|FP8|MXFP4(?:_MOE)?|NVFP4|TQ\d_\d))$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class ModelHint:
    """A model guessed from a name. `model` is a Hugging Face id where the name is a known one, `weights` the format."""

    text: str
    model: str | None = None
    weights: str | None = None


def known_model(name: str) -> str | None:
    """The Hugging Face id of a registered model with that name, whatever its dashes and case."""
    from kvplan.spec.resolve import registry

    index = registry()
    wanted = _fold(name)
    for spelling in index.names():
        if _fold(spelling) == wanted or _fold(spelling.rpartition("/")[2]) == wanted:
            try:
                spec = index.find(spelling)
            except InputError:
                continue
            return spec.hf_ids[0] if spec.hf_ids else spec.id
    return None


def _fold(name: str) -> str:
    return re.sub(r"[-_:\s]", "", name.lower())


def hint_from_file(path: str) -> ModelHint:
    """What the path of a checkpoint says: `/srv/gguf/Qwen3-32B-Q4_K_M.gguf`, `/models/Llama-3.1-8B-Instruct`."""
    name = path.rstrip("/").rpartition("/")[2]
    is_gguf = name.lower().endswith(".gguf")
    stem = name[:-5] if is_gguf else name
    split = _SPLIT.search(stem)
    stem = _SPLIT.sub("", stem)
    quant = _QUANT.search(stem)
    weights = quant.group(1).upper() if quant and is_gguf else None
    base = stem[: quant.start()] if weights and quant else stem
    model = known_model(base) if base else None
    parts = [f"{model or base} from the file name {name}" if is_gguf else f"{model or base} from the path {path}"]
    if weights:
        parts.append(f"weights {weights}")
    if split:
        parts.append(f"first of {int(split.group(2))} files")
    return ModelHint(", ".join(parts), model, weights)


def hint_from_repository(reference: str, file: str | None = None) -> ModelHint:
    """What a GGUF repository with an optional tag says: `ggml-org/gemma-3-12b-it-GGUF:Q8_0`."""
    repository, _, tag = reference.partition(":")
    name = re.sub(r"[-_.]?gguf$", "", repository.rpartition("/")[2], flags=re.IGNORECASE)
    if file is not None:
        tag = hint_from_file(file).weights or tag
    name = _QUANT.sub("", name)
    model = known_model(name) or (known_model(name.partition("_")[2]) if "_" in name else None)
    weights = f", weights {tag.upper()}" if tag else ""
    return ModelHint(f"{model or name} from {repository}{weights}", model, tag.upper() or None)


def hint_from_ollama(reference: str) -> ModelHint:
    """What an Ollama name says: `llama3.1:8b`, `qwen3:30b-a3b-q8_0`, `hf.co/REPOSITORY:TAG`."""
    for prefix in ("hf.co/", "huggingface.co/"):
        if reference.startswith(prefix):
            return hint_from_repository(reference.removeprefix(prefix))
    name, _, tag = reference.rpartition("/")[2].partition(":")
    quant = _QUANT.search(tag)
    size = tag[: quant.start()] if quant else tag
    weights = quant.group(1).upper() if quant else None
    candidates = [f"{name}-{size}", f"{name}-{size.partition('-')[0]}", name] if size and size != "latest" else [name]
    model = next((found for found in map(known_model, candidates) if found), None)
    stored = f"weights {weights}" if weights else "default weights Q4_K_M or the model's own format"
    return ModelHint(f"{model or reference} from {reference} ({stored})", model, weights)
