"""The weights a checkpoint really holds, summed from its headers: bytes by dtype and by part of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PARTS = (
    "embedding", "attention", "experts", "shared_experts", "router", "mlp", "norm", "head", "vision", "draft", "other",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a header: `elements` values of `dtype` in `nbytes` bytes."""

    name: str
    dtype: str
    elements: int
    nbytes: int


@dataclass(frozen=True)
class CheckpointTensors:
    """Sums over all tensors of a checkpoint, in bytes and stored values.

    `parameters_by_dtype` and `parameters_by_part` count stored values: a packed checkpoint (two 4-bit weights in a U8)
    stores fewer values than the model has parameters. `tied_head` says that no output matrix is stored, so the
    embedding serves as one. `complete` is False where only an index was read: totals then, no breakdown. `partial` says
    that some tensors are missing, so the sums are less than the model. `warnings` are sentences for the user.
    """

    total_bytes: int
    bytes_by_dtype: dict[str, int]
    parameters_by_dtype: dict[str, int]
    bytes_by_part: dict[str, int]
    parameters_by_part: dict[str, int]
    tensor_count: int
    files: tuple[str, ...]
    tied_head: bool
    complete: bool = True
    partial: bool = False
    warnings: tuple[str, ...] = ()


# A draft layer that is stored as one more decoder layer is known by the projections no ordinary layer has.
_LAYER = re.compile(r"((?:.*\.)?(?:layers|blk)\.\d+\.)(eh_proj|enorm|hnorm|shared_head|nextn)?\b")

# The first rule that matches decides, so a norm inside attention is a norm and an expert inside a mixer an expert.
_RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("draft", r"(?:^|[._])(?:mtp|nextn|medusa|eagle)\w*[._]"),
        ("vision", r"(?:^|\.)(?:vision|visual|vit|image|img|audio|multi_modal|mm_proj|embed_vision)\w*(?:\.|$)"
         r"|^(?:v|a|mm)\."),
        ("head", r"(?:^|\.)(?:lm_head|embed_out|output_layer)\.|^(?:model\.)?output\.|^(?:score|classifier|cls)\."),
        ("norm", r"norm|(?:^|\.)ln\w*\.|_ln\.|layer_?norm"),
        ("embedding", r"embe?d|(?:^|\.)(?:wte|wpe|emb)\.|token_types|position_enc"),
        ("shared_experts", r"shared_expert|shared_mlp|_shexp"),
        ("router", r"router|\.gate\.(?:weight|bias|wg|e_score)|gate_inp|e_score_correction|exp_probs_b|\.tid2eid"),
        ("experts", r"experts|_exps\b|block_sparse_moe"),
        ("attention", r"attn|attention|(?:^|\.)att\.|time_mix|indexer|compressor"),
        ("mlp", r"mlp|ffn|feed_forward|channel_mix|(?:up|down|gate|gate_up)_proj|(?:^|\.)(?:fc[12]|w[123]|c_fc)\."
         r"|h_to_4h|4h_to_h|dense_(?:in|out)"),
        ("attention", r"mixer|mamba|ssm|conv|delta|recurrent|temporal|[qkvo]_proj|qkv|(?:^|\.)(?:wq|wk|wv|wo)\."),
    )
)  # fmt: skip


def part_of(name: str) -> str:
    """Return the coarse part of the model (one of PARTS) a tensor of this name belongs to."""
    return next((part for part, pattern in _RULES if pattern.search(name)), "other")


def summarize(
    tensors: Iterable[TensorInfo], files: tuple[str, ...], warnings: tuple[str, ...] = (), partial: bool = False
) -> CheckpointTensors:
    """Sum tensors into CheckpointTensors. The names decide parts, whole draft layers and a tied head."""
    items = list(tensors)
    layers = [match.group(1, 2) if (match := _LAYER.match(item.name)) else (None, None) for item in items]
    draft = {prefix for prefix, marker in layers if marker}
    by_dtype: dict[str, int] = {}
    count_by_dtype: dict[str, int] = {}
    by_part = dict.fromkeys(PARTS, 0)
    count_by_part = dict.fromkeys(PARTS, 0)
    has_head = False
    for item, (layer, _) in zip(items, layers, strict=True):
        part = "draft" if layer in draft else part_of(item.name)
        has_head = has_head or part == "head"
        by_dtype[item.dtype] = by_dtype.get(item.dtype, 0) + item.nbytes
        count_by_dtype[item.dtype] = count_by_dtype.get(item.dtype, 0) + item.elements
        by_part[part] += item.nbytes
        count_by_part[part] += item.elements
    return CheckpointTensors(
        total_bytes=sum(by_dtype.values()),
        bytes_by_dtype=dict(sorted(by_dtype.items())),
        parameters_by_dtype=dict(sorted(count_by_dtype.items())),
        bytes_by_part={part: size for part, size in by_part.items() if size},
        parameters_by_part={part: count for part, count in count_by_part.items() if count},
        tensor_count=len(items),
        files=files,
        tied_head=not has_head,
        partial=partial,
        warnings=warnings,
    )
