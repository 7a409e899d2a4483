"""A GGUF file (or the first of its split parts) to a ModelSpec and its exact weight bytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, UnsupportedArchitectureError, did_you_mean, show
from kvplan.spec.importers.gguf_file import GgufHeader, LongArray, read_header
from kvplan.spec.importers.gguf_layers import Stack, dense_stack, stack
from kvplan.spec.importers.gguf_metadata import Metadata, families
from kvplan.spec.importers.naming import compact
from kvplan.spec.importers.tensors import CheckpointTensors, TensorInfo, summarize
from kvplan.spec.model import (
    MAX_NAME,
    Confidence,
    ModelDtype,
    ModelSpec,
    Parameters,
    Provenance,
    WeightQuantization,
)

MAX_SPLIT = 1_024

_SPLIT_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
_FLOATS: dict[str, ModelDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def load_gguf(path: Path, *, assume_dense: bool = False) -> tuple[ModelSpec, CheckpointTensors]:
    """Read the header of a GGUF file and of the other parts of a split one; no tensor data is read.

    Raises InputError on a broken file and UnsupportedArchitectureError where the layout isn't known; `assume_dense`
    then makes every layer full attention and marks the spec.
    """
    header = read_header(path)
    tensors = _all_tensors(path, header)
    spec = spec_from_metadata(
        header.metadata, label=path.name, name=path.stem, tensors=tensors, assume_dense=assume_dense
    )
    return spec, tensors


def spec_from_metadata(
    metadata: dict[str, Any],
    *,
    label: str,
    name: str,
    tensors: CheckpointTensors | None = None,
    assume_dense: bool = False,
) -> ModelSpec:
    """Map GGUF metadata (keys with their architecture prefix) to a spec. `label` is what errors call the file."""
    meta = Metadata(metadata, label)
    if metadata.get("general.type") in ("adapter", "mmproj", "imatrix"):
        raise InputError(f"{label}: general.type: found {show(metadata['general.type'])}, expected a model")
    layers, confidence = _layers(meta, assume_dense)
    assumptions = [*layers.assumptions]
    dtype = _dtype(tensors)
    if dtype is None:
        assumptions.insert(0, "GGUF names no model dtype beside block-quantized weights: float16 is taken")
    title = metadata.get("general.name")
    return ModelSpec(
        id=(_slug(title) if isinstance(title, str) else "") or _slug(name) or "gguf-model",
        model_type=meta.arch,
        dtype=dtype or "float16",
        blocks=layers.blocks,
        layers=compact(layers.layers),
        draft_layers=compact(layers.drafts),
        provenance=Provenance(source=f"GGUF metadata of {label}", confidence=confidence),
        max_context=meta.whole("context_length", high=10**12),
        hidden_size=meta.whole("embedding_length"),
        vocab_size=_vocab_size(meta),
        tied_embeddings=tensors.tied_head if tensors else None,
        parameters=_parameters(meta, tensors),
        quantization=_quantization(tensors),
        assumptions=tuple(assumptions),
    )


def _layers(meta: Metadata, assume_dense: bool) -> tuple[Stack, Confidence]:
    try:
        family = families().get(meta.arch)
        if family is None:
            raise meta.unsupported(
                "an architecture whose layout kvplan doesn't know, expected a known one "
                f"or --assume dense{did_you_mean(meta.arch, families())}"
            )
        return stack(meta, family), "verbatim"
    except UnsupportedArchitectureError as refusal:
        if not assume_dense:
            raise
        layers = dense_stack(meta)
        note = f"every layer is assumed to be full attention (--assume dense), since: {refusal}"
        return Stack(layers.blocks, layers.layers, layers.drafts, (*layers.assumptions, note)), "assumed"


def _all_tensors(path: Path, header: GgufHeader) -> CheckpointTensors:
    """The tensors of all split parts, with a warning where parts or tensor data are missing."""
    tensors: dict[str, TensorInfo] = {}
    warnings = []
    parts = _split_parts(path, header)
    missing = [part.name for part in parts if part != path and not part.is_file()]
    if missing:
        warnings.append(
            f"{len(missing)} of {len(parts)} split parts are missing ({missing[0]} is the first), "
            "so the weights are more than counted"
        )
    for part in parts:
        if part.name in missing:
            continue
        found = header if part == path else read_header(part)
        if found.held_bytes < found.data_bytes:
            warnings.append(
                f"{part.name} ends before its tensors do: {found.held_bytes:,} of {found.data_bytes:,} bytes are there"
            )
        for tensor in found.tensors:
            if tensor.name in tensors:
                raise InputError(f"{part}: found tensor {show(tensor.name)} of another part, expected each once")
            tensors[tensor.name] = tensor
    files = tuple(part.name for part in parts if part.name not in missing)
    return summarize(tensors.values(), files, tuple(warnings), partial=bool(missing))


def _split_parts(path: Path, header: GgufHeader) -> list[Path]:
    count = header.metadata.get("split.count", 0)
    match = _SPLIT_NAME.fullmatch(path.name)
    if not isinstance(count, int) or not 0 <= count <= MAX_SPLIT:
        raise InputError(f"{path}: split.count: found {show(count)}, expected a whole number up to {MAX_SPLIT}")
    if count < 2 or match is None:
        return [path]
    if int(match.group(2)) != 1:
        raise InputError(f"{path}: found part {int(match.group(2))} of a split model, expected its first part")
    return [path, *(path.with_name(f"{match.group(1)}-{part:05d}-of-{count:05d}.gguf") for part in range(2, count + 1))]


def _dtype(tensors: CheckpointTensors | None) -> ModelDtype | None:
    """The dtype of the weights where they are plain floats; None where most are in a block format."""
    if tensors is None or not tensors.bytes_by_dtype:
        return None
    return _FLOATS.get(max(tensors.bytes_by_dtype, key=lambda dtype: tensors.bytes_by_dtype[dtype]))


def _quantization(tensors: CheckpointTensors | None) -> WeightQuantization | None:
    if tensors is None or not tensors.bytes_by_dtype or _dtype(tensors):
        return None
    return WeightQuantization(method=f"gguf {max(tensors.bytes_by_dtype, key=tensors.bytes_by_dtype.__getitem__)}")


def _parameters(meta: Metadata, tensors: CheckpointTensors | None) -> Parameters | None:
    """Parameters by part, counted from the tensors; None without tensors or where parts of them are missing."""
    if tensors is None or not tensors.tensor_count or tensors.warnings:
        return None
    count = tensors.parameters_by_part
    experts, draft = count.get("experts", 0), count.get("draft", 0)
    total = sum(count.values()) - draft - count.get("vision", 0)
    routed, used = meta.whole("expert_count", low=0), meta.whole("expert_used_count", low=0)
    idle = experts - experts * used // routed if routed and used is not None and used <= routed else 0
    return Parameters(
        embedding=count.get("embedding", 0),
        attention=count.get("attention", 0),
        # what no rule knows (projections between streams, per-layer inputs) is computed for each token like an MLP
        dense_mlp=count.get("mlp", 0) + count.get("other", 0),
        experts=experts,
        shared_experts=count.get("shared_experts", 0),
        router=count.get("router", 0),
        norms=count.get("norm", 0),
        head=count.get("head", 0),
        active=total - idle,
        draft=draft,
    )


def _vocab_size(meta: Metadata) -> int | None:
    size = meta.whole("vocab_size")
    tokens = meta.values.get("tokenizer.ggml.tokens")
    return size or (tokens.length if isinstance(tokens, LongArray) and tokens.length else None)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text[:200].lower()).strip("-.")[:MAX_NAME]
