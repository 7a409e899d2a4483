"""The kernels against attention written out by hand, the traps the interpreter and the pages hold, compilation."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.validate.attention import NOT_FINITE, largest_error, numerics
from kvplan.validate.device import open_device
from kvplan.validate.kernels import torch_decode
from kvplan.validate.kernels.oracle import sdpa
from kvplan.validate.kernels.problem import Decode, shuffled_table
from kvplan.validate.kernels.triton_decode import Launch, TritonDecode, choose_splits, missing_reason

torch = pytest.importorskip("torch", reason="needs torch")

HAS_GPU = torch.cuda.is_available()
interpreted = pytest.mark.skipif(
    HAS_GPU or missing_reason("cpu") is not None, reason="Triton's interpreter needs triton, and no GPU beside it"
)
ROOT = Path(__file__).resolve().parent.parent.parent
CLOSE = 1e-5


def make(
    generator: Any,
    *,
    heads: int = 2,
    group: int = 4,
    width: int = 64,
    value: int | None = None,
    page: int = 16,
    lengths: tuple[int, ...] = (1, 33, 70),
    dtype: Any = torch.bfloat16,
    rope: int = 0,
    window: int = 0,
    sinks: bool = False,
    shared: bool = False,
    scale_groups: int = 0,
) -> Decode:
    """A decode step over random pages, a few of which belong to nobody."""
    blocks = sum(-(-length // page) for length in lengths) + 3
    value = value or width

    def pages(size: int) -> Any:
        if dtype == torch.int8:
            return torch.randint(-128, 128, (blocks, page, heads, size), generator=generator, dtype=torch.int8)
        return torch.randn((blocks, page, heads, size), generator=generator).to(dtype)

    def scales() -> Any:
        factor = 1 / 64 if dtype == torch.int8 else 1.0
        return (torch.rand((blocks, page, heads, scale_groups), generator=generator) + 0.5) * factor

    key = pages(width)
    return Decode(
        torch, torch.randn((len(lengths), heads * group, width + rope), generator=generator).to(torch.bfloat16),
        key, key[..., :value] if shared else pages(value),
        shuffled_table(torch, blocks, lengths, page, generator, "cpu"), torch.tensor(lengths, dtype=torch.int32),
        1 / math.sqrt(width + rope),
        rope=torch.randn((blocks, page, 1, rope), generator=generator).to(torch.bfloat16) if rope else None,
        key_scale=scales() if scale_groups else None, value_scale=scales() if scale_groups and not shared else None,
        window=window, sinks=torch.randn((heads * group,), generator=generator) if sinks else None, shared=shared,
    )  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "GQA": {},
    "MQA, fp8": {"heads": 1, "group": 8, "dtype": torch.float8_e4m3fn},
    "MHA": {"group": 1, "width": 32},
    "window inside a page": {"window": 21, "lengths": (5, 90)},
    "window and sinks": {"window": 40, "sinks": True, "lengths": (5, 90)},
    "sinks": {"sinks": True},
    "pages of 7, width 80, V of 48": {"page": 7, "width": 80, "value": 48, "group": 3},
    "pages of 1": {"page": 1, "lengths": (1, 19)},
    "MLA": {"heads": 1, "group": 20, "width": 128, "rope": 32, "shared": True},
    "MLA, fp8 record": {
        "heads": 1, "group": 16, "width": 128, "rope": 32, "shared": True, "dtype": torch.float8_e4m3fn,
        "scale_groups": 4,
    },
    "int8 per token and head": {"dtype": torch.int8, "scale_groups": 1},
    "float16": {"dtype": torch.float16},
}  # fmt: skip


def by_hand(problem: Decode) -> Any:
    """Attention as its definition says, one head and one token at a time, in Python's own floats."""
    out = torch.zeros((*problem.query.shape[:2], problem.value_width))
    for row in range(problem.query.shape[0]):
        begin, end = problem.span(row)
        for head in range(problem.query.shape[1]):
            kv = head // problem.group
            weights, values = [], []
            for token in range(begin, end):
                at = (int(problem.table[row, token // problem.page]), token % problem.page)
                key = problem.key[at][kv].float()
                value = key[: problem.value_width] if problem.shared else problem.value[at][kv].float()
                if problem.key_scale is not None:
                    run = problem.key.shape[3] // problem.key_scale.shape[3]
                    scale = torch.tensor([float(problem.key_scale[at][kv][d // run]) for d in range(len(key))])
                    key = key * scale
                    value = key[: problem.value_width] if problem.shared else value * problem.value_scale[at][kv]
                if problem.rope is not None:
                    key = torch.cat((key, problem.rope[at][0].float()))
                weights.append(float(problem.query[row, head].float() @ key) * problem.scale)
                values.append(value)
            top = max(weights)
            exps = [math.exp(weight - top) for weight in weights]
            total = sum(exps)
            if problem.sinks is not None:
                total += math.exp(float(problem.sinks[head]) - top)
            out[row, head] = sum((e / total * v for e, v in zip(exps, values, strict=True)), start=torch.zeros(1))
    return out


@pytest.mark.parametrize("name", SHAPES)
def test_the_oracle_is_the_definition(name: str, generator: Any) -> None:
    shape = {**SHAPES[name], "lengths": (1, 9, 18)}
    if "window" in shape:
        shape["window"] = 6
    problem = make(generator, **shape)
    assert largest_error(open_device("cpu"), sdpa(problem), by_hand(problem)) < CLOSE


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("splits", [1, 5])
def test_the_torch_kernel(name: str, splits: int, generator: Any) -> None:
    problem = make(generator, **SHAPES[name])
    out = torch_decode.decode(problem, problem.poisoned_output(), splits)
    assert largest_error(open_device("cpu"), out, sdpa(problem)) < CLOSE


@interpreted
@pytest.mark.parametrize("name", SHAPES)
def test_the_triton_kernel_interpreted(name: str, generator: Any) -> None:
    device = open_device("cpu")
    problem = make(generator, **SHAPES[name])
    # Five splits of one short request leave some of them empty.
    kernel = TritonDecode(problem, 5, Launch(tile=32, heads=32), True, device.empty)
    assert largest_error(device, kernel(), sdpa(problem)) < CLOSE


@interpreted
@pytest.mark.parametrize("tile", [16, 64])
@pytest.mark.parametrize("splits", [1, 8])
def test_tiles_and_splits_do_not_change_the_answer(tile: int, splits: int, generator: Any) -> None:
    device = open_device("cpu")
    problem = make(generator, heads=1, lengths=(50,), page=8)
    kernel = TritonDecode(problem, splits, Launch(tile=tile), True, device.empty)
    assert largest_error(device, kernel(), sdpa(problem)) < CLOSE
    other = make(generator, heads=1, lengths=(50,), page=8)
    assert largest_error(device, kernel(other), sdpa(other)) < CLOSE  # the same launch over other pages
    assert kernel.workspace_bytes == 4 * splits * (64 + 1) * 4


@interpreted
def test_offsets_beyond_two_to_the_31(generator: Any) -> None:
    """A pool of more than 2^31 values, of which only the pages in use are ever touched (the rest stays unmapped)."""
    device = open_device("cpu")
    page, width = 16, 64
    blocks = (1 << 31) // (page * width) + 9
    key, value = (torch.empty((blocks, page, 1, width), dtype=torch.float8_e4m3fn) for _ in range(2))
    used = [blocks - 1, 3, blocks - 5]
    for block in used:
        for pages in (key, value):
            pages[block] = torch.randn((page, 1, width), generator=generator).to(torch.float8_e4m3fn)
    assert used[0] * key.stride(0) > 1 << 31
    problem = replace(
        make(generator, heads=1, lengths=(41,)), key=key, value=value, table=torch.tensor([used], dtype=torch.int32)
    )
    right = sdpa(problem)
    assert largest_error(device, torch_decode.decode(problem, problem.poisoned_output()), right) < CLOSE
    assert largest_error(device, TritonDecode(problem, 2, Launch(), True, device.empty)(), right) < CLOSE


def test_an_output_nobody_wrote_fails(generator: Any) -> None:
    problem = make(generator)
    right, poisoned = sdpa(problem), problem.poisoned_output()
    assert largest_error(open_device("cpu"), poisoned, right) == NOT_FINITE
    out = torch_decode.decode(problem, poisoned)
    out[1, 2, 3] = math.nan
    assert largest_error(open_device("cpu"), out, right) == NOT_FINITE


def test_a_kernel_that_breaks_fails_its_row(generator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch_decode, "decode", broken)
    row = next(iter(numerics(open_device("cpu"), "m", "K+V", make(generator))))
    assert (row.status, row.note) == ("fail", "failed: RuntimeError: an illegal memory access was encountered")


def test_a_swapped_block_and_a_token_too_many_are_seen(generator: Any) -> None:
    problem = make(generator, lengths=(33,))
    right = sdpa(problem)
    swapped = problem.table.clone()
    swapped[0, 0], swapped[0, 2] = problem.table[0, 2], problem.table[0, 0]
    longer = replace(problem, lengths=problem.lengths + 1)
    for wrong in (replace(problem, table=swapped), longer):
        assert largest_error(open_device("cpu"), torch_decode.decode(wrong, wrong.poisoned_output()), right) > 1e-2


def test_a_shuffled_table_uses_no_block_twice(generator: Any) -> None:
    table = shuffled_table(torch, 20, (33, 1, 64), 16, generator, "cpu")
    used = [*table[0, :3].tolist(), *table[1, :1].tolist(), *table[2, :4].tolist()]
    assert len(set(used)) == 8
    assert table.dtype == torch.int32


def test_splits_fill_the_card_and_stay_long(generator: Any) -> None:
    problem = make(generator, heads=8, group=4, lengths=(16,))
    assert choose_splits(problem, 132, 32768, Launch()) == 32  # 264 programs wanted, 8 a split
    assert choose_splits(problem, 132, 512, Launch()) == 2  # but none below 256 tokens
    assert choose_splits(problem, 132, 16, Launch()) == 1


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvplan.validate.kernels import triton_kernels
from kvplan.validate.kernels.triton_decode import LAUNCHES

def build(kind, launch, width, rope, shared, run, group, capability):
    kernel = triton_kernels.partial_kernel
    pad = triton.next_power_of_2
    fixed = dict(GROUP=group, HEADS=max(16, min(launch.heads, pad(group))), TILES=1, TILE=launch.tile, D=width,
                 D_PAD=pad(width), R=rope, R_PAD=max(16, pad(rope or 1)), V=width, V_PAD=pad(width), SHARED=shared,
                 KEY_RUN=run, VALUE_RUN=0 if shared else run, UPCAST=False)
    pointers = dict(query="*bf16", key=kind, value=kind, rope="*bf16" if run or not rope else kind, table="*i32",
                    lengths="*i32", out="*fp32", sums="*fp32", scale="fp32", key_scale="*fp32" if run else kind,
                    value_scale="*fp32" if run and not shared else kind)
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else pointers.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, constexprs={(names.index(name),): value for name, value in fixed.items()})
    options = dict(num_warps=launch.warps, num_stages=launch.stages)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print(kind, width, capability, compiled.metadata.shared, len(compiled.asm["cubin"]), "mma" in compiled.asm["ptx"])

first = LAUNCHES[0]
build("*bf16", first, 128, 0, False, 0, 4, 90)
build("*fp8e4nv", first, 128, 0, False, 0, 4, 90)
build("*i8", first, 128, 0, False, 128, 4, 90)
build("*bf16", LAUNCHES[1], 512, 64, True, 0, 128, 90)
build("*fp8e4nv", LAUNCHES[1], 512, 64, True, 128, 128, 90)
build("*fp16", first, 128, 0, False, 0, 4, 80)
"""


@pytest.mark.skipif(missing_reason("cpu") is not None, reason="triton is not installed")
def test_the_kernel_compiles_for_gpus_without_one() -> None:
    """To machine code for Ampere and Hopper, on tensor cores, within the shared memory of one multiprocessor."""
    command = [sys.executable, "-c", COMPILE]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home()), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 6
    for *_, capability, shared, size, tensor_cores in lines:
        assert int(shared) <= (227 if capability == "90" else 163) * 1024
        assert int(size) > 10_000
        assert tensor_cores == "True"


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_the_triton_kernel_on_a_gpu(name: str, generator: Any) -> None:
    device = open_device("cuda:0")
    problem = make(generator, **SHAPES[name])
    moved = {
        field: getattr(problem, field).to(device.handle)
        for field in ("query", "key", "value", "table", "lengths", "rope", "key_scale", "value_scale", "sinks")
        if getattr(problem, field) is not None
    }
    problem = replace(problem, **moved)
    if problem.shared:
        problem = replace(problem, value=problem.key[..., : problem.value_width])
    kernel = TritonDecode(problem, 4, Launch(), False, device.empty)
    assert largest_error(device, kernel(), sdpa(problem)) < 2e-2
