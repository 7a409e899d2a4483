"""Which attention backend vLLM takes for a layer, and which block sizes the backend takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import lcm
from typing import Any

from kvplan.engines.base import Device
from kvplan.engines.versions import load_rules
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record

SIXTEEN_BIT = ("auto", "bfloat16", "float16")


@record
class Backend:
    """One attention backend as backends.yaml describes it."""

    name: str
    blocks: tuple[int, ...]
    dtypes: tuple[str, ...]
    multiples: bool = False
    latent: bool = False
    sparse: bool = False
    packed: bool = False
    windows: bool = False
    float32: bool = False
    quantized_only: bool = False
    majors: tuple[int, ...] = ()
    at_least: tuple[int, int] = (0, 0)
    quantized_majors: tuple[int, ...] = ()
    sink_majors: tuple[int, ...] | str = ()
    head_limit: int | None = None
    auto_dtype: str | None = None

    @property
    def smallest_block(self) -> int:
        return min(self.blocks)

    def takes_block(self, tokens: int) -> bool:
        """Whether a block of that many tokens is made of whole kernel blocks."""
        return any(tokens % size == 0 for size in self.blocks)

    def block_within(self, entry_bytes: int, page_budget: int) -> int:
        """The largest kernel block whose page fits `page_budget`, else the smallest there is."""
        limit = page_budget // entry_bytes
        sizes = [max(size, limit // size * size) if self.multiples else size for size in self.blocks]
        fitting = [size for size in sizes if size * entry_bytes <= page_budget]
        return max(fitting) if fitting else min(sizes)


@record
class LayerNeed:
    """What a layer asks of a backend. `dtype` is vLLM's cache dtype name of this layer."""

    dtype: str
    head_dim: int
    latent: bool = False
    sparse: bool = False
    window: bool = False
    sinks: bool = False
    float32: bool = False


@cache
def backends() -> dict[str, Backend]:
    """Every backend by name."""
    listed = load_rules("vllm_backends")["backends"]
    made = {}
    for name, fields in listed.items():
        values: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}
        made[name] = Backend(name, **values)
    return made


def find_backend(name: object) -> Backend:
    """The backend that --attention-backend names. Raises InputError."""
    found = backends().get(str(name).strip().upper())
    if found is None:
        near = did_you_mean(str(name), backends())
        raise InputError(f"--attention-backend: found {show(name)}, expected one of {', '.join(backends())}{near}")
    return found


def _refusal(backend: Backend, need: LayerNeed, device: Device, block: int | None) -> str | None:
    """Why the backend can't serve the layer, None where it can."""
    capability = device.compute_capability or (0, 0)
    quantized = need.dtype not in SIXTEEN_BIT
    checks = (
        (backend.latent != need.latent, "MLA"),
        (backend.sparse != need.sparse, "sparse attention"),
        (quantized and need.dtype not in backend.dtypes, f"cache dtype {need.dtype}"),
        (not quantized and backend.quantized_only, "a 16-bit cache"),
        (quantized and bool(backend.quantized_majors) and capability[0] not in backend.quantized_majors, need.dtype),
        (bool(backend.majors) and capability[0] not in backend.majors, "the compute capability"),
        (capability < backend.at_least, "the compute capability"),
        (backend.head_limit is not None and need.head_dim > backend.head_limit, f"head_dim {need.head_dim}"),
        (need.window and not backend.windows and not backend.latent, "sliding windows"),
        (need.float32 and not backend.float32, "float32"),
        (need.sinks and backend.sink_majors != "any" and capability[0] not in backend.sink_majors, "sinks"),
        (block is not None and not backend.takes_block(block), f"a block of {block} tokens"),
    )
    return next((reason for failed, reason in checks if failed), None)


def choose_backend(need: LayerNeed, device: Device, block: int | None, asked: Backend | None) -> Backend:
    """The backend vLLM takes for a layer. `block` is --block-size where it was given, `asked` the user's backend.

    Raises InputError where none serves the layer.
    """
    table = load_rules("vllm_backends")["priorities"]["latent" if need.latent else "heads"]
    key = device.kind if device.kind in table else (device.compute_capability or (0, 0))[0]
    candidates = [backends()[name] for name in table.get(key, table["default"])]
    if asked is not None and asked.latent == need.latent and asked.sparse == need.sparse:
        candidates = [asked]
    reasons = []
    for backend in candidates:
        reason = _refusal(backend, need, device, block)
        if reason is None:
            return backend
        reasons.append((backend, reason))
    if block is not None:
        fitting = [b.smallest_block for b, _ in reasons if _refusal(b, need, device, None) is None]
        if fitting:
            raise InputError(
                f"--block-size: found {block}, expected a multiple of {min(fitting)}, which the attention backend takes"
            )
    kin = [(b, why) for b, why in reasons if (b.latent, b.sparse) == (need.latent, need.sparse)]
    listed = "; ".join(f"{backend.name} lacks {reason}" for backend, reason in kin) or "there is none"
    plain = replace(need, dtype="auto")
    if any(_refusal(backend, plain, device, block) is None for backend in candidates):
        raise InputError(
            f"--kv-cache-dtype: found {need.dtype} on {device.name}, expected a dtype that one of vLLM's attention "
            f"backends takes there ({listed})"
        )
    kind = "sparse MLA" if need.sparse else "MLA" if need.latent else f"heads of {need.head_dim}"
    raise InputError(
        f"--gpu: found {device.name}, expected a device on which vLLM has an attention backend for {kind} and cache "
        f"dtype {need.dtype} ({listed})"
    )


def common_block(chosen: Sequence[Backend], default: int = 16) -> int:
    """The smallest block that every backend takes, `default` where it will do. Raises InputError."""
    if all(backend.takes_block(default) for backend in chosen):
        return default
    if len(chosen) == 1:
        return chosen[0].smallest_block
    candidates = {1}
    for backend in chosen:
        candidates = {lcm(size, other) for size in candidates for other in backend.blocks}
    for candidate in sorted(candidates):
        if all(backend.takes_block(candidate) for backend in chosen):
            return candidate
    raise InputError(
        f"--attention-backend: found {', '.join(b.name for b in chosen)}, expected backends that share a block size"
    )
