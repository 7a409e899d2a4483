"""Which kernels there are on this machine, by name: our own, and those of other packages where they can be imported."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvplan.validate.device import Device
from kvplan.validate.kernels import torch_decode
from kvplan.validate.kernels.problem import Decode
from kvplan.validate.kernels.triton_decode import Launch, TritonDecode, choose_splits, missing_reason

INTERPRETER_STEPS = 256  # an interpreted step of the loop takes 10 ms and more
INTERPRETER_LAUNCH = Launch(tile=64, heads=128)
CPU_MULTIPROCESSORS = 8
FP8_CAPABILITY = (8, 9)
INTERPRETED = "triton (interpreted)"

Prepared = Callable[[], Any]


@dataclass(frozen=True)
class Backend:
    """A kernel by name. `refuses(problem)` says why it can't take a problem, None when it can; `prepare` allocates."""

    name: str
    refuses: Callable[[Decode], str | None]
    prepare: Callable[[Decode], Prepared]


def own_backend(device: Device, launch: Launch | None = None) -> Backend:
    """The kernel the verdict rests on: Triton on a GPU, its torch twin on a CPU or where Triton is missing."""
    if device.kind == "cuda" and missing_reason(device.kind) is None:
        return triton_backend(device, launch)
    return Backend("torch split-KV", lambda problem: None, lambda problem: _torch_call(problem))


def _torch_call(problem: Decode) -> Prepared:
    out = problem.poisoned_output()
    return lambda: torch_decode.decode(problem, out)


def triton_backend(device: Device, launch: Launch | None = None) -> Backend:
    """Our Triton kernel, through its interpreter on a CPU."""
    interpret = device.kind == "cpu"
    chosen = launch or (INTERPRETER_LAUNCH if interpret else Launch())

    def refuses(problem: Decode) -> str | None:
        reason = missing_reason(device.kind)
        capability = device.facts().compute_capability
        if reason is None and capability is not None and capability < FP8_CAPABILITY and _is_fp8(problem):
            return "fp8 needs compute capability 8.9"
        if reason is None and interpret:
            tiles = problem.kv_heads * -(-problem.group // chosen.heads)
            steps = tiles * (problem.attended() // chosen.tile + int(problem.lengths.numel()))
            if steps > INTERPRETER_STEPS:
                return f"{steps:,} steps are too many for Triton's interpreter"
        return reason

    def prepare(problem: Decode) -> Prepared:
        longest = int(problem.lengths.max())
        processors = CPU_MULTIPROCESSORS if interpret else device.facts().multiprocessors or CPU_MULTIPROCESSORS
        return TritonDecode(
            problem, choose_splits(problem, processors, longest, chosen), chosen, interpret, device.empty
        )

    return Backend(INTERPRETED if interpret else "triton", refuses, prepare)


def _is_fp8(problem: Decode) -> bool:
    return bool(problem.key.element_size() == 1 and problem.key.is_floating_point())


def other_backends(device: Device) -> Iterator[Backend]:
    """The optional kernels of other packages. Each refuses what it has no kernel for, and says so."""
    yield Backend("FlashInfer", lambda problem: _flashinfer_refuses(device, problem), _flashinfer)
    yield Backend("flash-attn", lambda problem: _flash_attn_refuses(device, problem), _flash_attn)
    yield Backend("FlashMLA", lambda problem: _flash_mla_refuses(device, problem), _flash_mla)
    yield Backend("flex attention", lambda problem: _flex_refuses(problem), _flex)


def _missing(package: str, device: Device) -> str | None:
    if device.kind != "cuda":
        return "needs a GPU"
    return None if importlib.util.find_spec(package) else f"{package} is not installed"


def _sixteen_bit_heads(problem: Decode) -> str | None:
    plain = problem.key_scale is None and problem.key.element_size() == 2
    if not plain or problem.rope is not None or problem.shared or problem.sinks is not None:
        return "takes 16-bit K and V heads without sinks only"
    return None


def _flashinfer_refuses(device: Device, problem: Decode) -> str | None:
    return _missing("flashinfer", device) or _sixteen_bit_heads(problem)


def _flashinfer(problem: Decode) -> Prepared:
    """FlashInfer's paged decode on tensor cores (flashinfer-ai/flashinfer flashinfer/decode.py)."""
    flashinfer, torch = importlib.import_module("flashinfer"), problem.torch
    pages = (problem.lengths + problem.page - 1) // problem.page
    ends = torch.cumsum(pages, 0).to(torch.int32)
    starts = torch.cat((torch.zeros_like(ends[:1]), ends))
    indices = torch.cat([problem.table[row, :count] for row, count in enumerate(pages.tolist())])
    last = (problem.lengths - 1) % problem.page + 1
    workspace = torch.empty(128 << 20, dtype=torch.uint8, device=problem.query.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        starts, indices, last.to(torch.int32), int(problem.query.shape[1]), problem.kv_heads, problem.value_width,
        problem.page, window_left=problem.window - 1 if problem.window else -1, q_data_type=problem.query.dtype,
        kv_data_type=problem.key.dtype, sm_scale=problem.scale,
    )  # fmt: skip
    return lambda: wrapper.run(problem.query, (problem.key, problem.value))


def _flash_attn_refuses(device: Device, problem: Decode) -> str | None:
    reason = _missing("flash_attn", device) or _sixteen_bit_heads(problem)
    if reason is None and problem.page % 256:
        return "takes pages of a multiple of 256 tokens only"
    return reason


def _flash_attn(problem: Decode) -> Prepared:
    """flash-attn's decode over a block table (Dao-AILab/flash-attention flash_attn_with_kvcache)."""
    call = importlib.import_module("flash_attn").flash_attn_with_kvcache
    window = (problem.window - 1, 0) if problem.window else (-1, -1)
    query = problem.query.unsqueeze(1)
    return lambda: call(
        query, problem.key, problem.value, cache_seqlens=problem.lengths, block_table=problem.table,
        softmax_scale=problem.scale, causal=True, window_size=window,
    ).squeeze(1)  # fmt: skip


def _flash_mla_refuses(device: Device, problem: Decode) -> str | None:
    reason = _missing("flash_mla", device)
    if reason is None and (problem.rope is None or problem.page != 64 or problem.key.element_size() != 2):
        return "takes 16-bit MLA latents in pages of 64 only"
    return reason


def _flash_mla(problem: Decode) -> Prepared:
    """FlashMLA's dense decode (deepseek-ai/FlashMLA). The latent and its rotary part are views of one record."""
    package, torch = importlib.import_module("flash_mla"), problem.torch
    record = torch.as_strided(
        problem.key, (*problem.key.shape[:3], problem.key.shape[3] + problem.rope.shape[3]), problem.key.stride()
    )
    heads = int(problem.query.shape[1])
    plan, splits = package.get_mla_metadata(problem.lengths, heads, 1)
    query = problem.query.unsqueeze(1)
    return lambda: package.flash_mla_with_kvcache(
        query, record, problem.table, problem.lengths, problem.value_width, plan, splits,
        softmax_scale=problem.scale, causal=True,
    )[0].squeeze(1)  # fmt: skip


def _flex_refuses(problem: Decode) -> str | None:
    reason = _sixteen_bit_heads(problem)
    if reason is None and len(set(problem.lengths.tolist())) > 1:
        return "is run on requests of one length only"
    return reason


def _flex(problem: Decode) -> Prepared:
    """torch's flex attention over gathered pages: numerics only, the gather moves the bytes twice more."""
    flex = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    from kvplan.validate.kernels.oracle import gather

    torch = problem.torch

    def call() -> Any:
        pairs = [gather(problem, row, *problem.span(row)) for row in range(int(problem.lengths.numel()))]
        keys, values = (torch.stack(side).transpose(1, 2) for side in zip(*pairs, strict=True))
        query = problem.query.to(torch.float32).unsqueeze(2)
        return flex(query, keys, values, scale=problem.scale, enable_gqa=True).squeeze(2)

    return call
