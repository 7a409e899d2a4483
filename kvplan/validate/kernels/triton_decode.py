"""Launching the Triton kernels: tile sizes, splits, workspace, and the interpreter where there is no GPU."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

from kvplan.validate.kernels.problem import Decode

INTERPRET = "TRITON_INTERPRET"
MIN_ROWS = 16  # tl.dot takes no smaller tile
MAX_SPLITS = 128
SPLIT_TOKENS = 256
WAVES = 2


@dataclass(frozen=True)
class Launch:
    """Sizes of one launch: `heads` query heads and `tile` tokens a step; `warps` and `stages` are Triton's."""

    tile: int = 64
    heads: int = 16
    warps: int = 4
    stages: int = 2


#: what a sweep on a GPU tries; the first is used untuned
LAUNCHES = (
    Launch(),
    Launch(tile=32, stages=3),
    Launch(tile=64, stages=3),
    Launch(tile=128, warps=8),
    Launch(tile=32, heads=32, warps=8),
    Launch(tile=64, heads=64, warps=8),
)


def missing_reason(kind: str) -> str | None:
    """Why the Triton kernels can't run on a device of that kind, None when they can (on a CPU: interpreted)."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if kind == "cuda" and os.environ.get(INTERPRET, "0") != "0":
        return f"{INTERPRET} is set, which runs kernels on the CPU"
    return None


def load_kernels(interpret: bool) -> Any:
    """The module of kernels. Triton decides once a process whether it interprets, when kernels are first imported."""
    if interpret:
        os.environ[INTERPRET] = "1"
    return importlib.import_module("kvplan.validate.kernels.triton_kernels")


def choose_splits(problem: Decode, multiprocessors: int, longest: int, launch: Launch) -> int:
    """Splits that give about two programs a multiprocessor, none of them below SPLIT_TOKENS tokens; a power of two."""
    programs = int(problem.query.shape[0]) * problem.kv_heads * -(-problem.group // launch.heads)
    wanted = max(1, WAVES * multiprocessors // programs)
    most = max(1, min(MAX_SPLITS, longest // SPLIT_TOKENS))
    return int(1 << (min(wanted, most).bit_length() - 1))


class TritonDecode:
    """A prepared launch: workspace and output are allocated once, so that a call does nothing but launch.

    `splits` is fixed for all calls; `empty` allocates (shape, torch dtype name).
    """

    def __init__(self, problem: Decode, splits: int, launch: Launch, interpret: bool, empty: Any) -> None:
        self.problem, self.splits, self.launch = problem, splits, launch
        batch, heads = (int(size) for size in problem.query.shape[:2])
        self.parts = empty((batch, heads, splits, problem.value_width), "float32")
        self.sums = empty((batch, heads, splits), "float32")
        self.out = problem.poisoned_output()
        self.interpret = interpret
        self.kernels = load_kernels(interpret)

    @property
    def workspace_bytes(self) -> int:
        return int(self.parts.numel() * self.parts.element_size() + self.sums.numel() * self.sums.element_size())

    def __call__(self, problem: Decode | None = None) -> Any:
        """Run, over other pages of the same shape where `problem` is given; returns the output tensor."""
        p = self.problem if problem is None else problem
        batch, heads = (int(size) for size in p.query.shape[:2])
        tiles = -(-p.group // self.launch.heads)
        width = int(p.key.shape[3])
        rope = p.key if p.rope is None else p.rope
        rope_width = 0 if p.rope is None else int(p.rope.shape[3])
        key_scale, key_run = _scales(p.key, p.key_scale)
        value_scale, value_run = _scales(p.value, p.value_scale)
        value_pad = _power(p.value_width) if not p.shared else _power(width)
        self.kernels.partial_kernel[(batch, p.kv_heads * tiles, self.splits)](
            p.query, p.key, rope, p.value, key_scale, value_scale, p.table, p.lengths, self.parts, self.sums,
            p.scale, p.page, p.window, self.splits,
            p.query.stride(0), p.query.stride(1), *p.key.stride()[:3], *rope.stride()[:2], *p.value.stride()[:3],
            *key_scale.stride()[:3], *value_scale.stride()[:3], p.table.stride(0), *self.parts.stride()[:3],
            *self.sums.stride()[:2],
            GROUP=p.group, HEADS=max(MIN_ROWS, min(self.launch.heads, _power(p.group))), TILES=tiles,
            TILE=self.launch.tile, D=width, D_PAD=max(MIN_ROWS, _power(width)), R=rope_width,
            R_PAD=max(MIN_ROWS, _power(rope_width or 1)), V=p.value_width, V_PAD=max(MIN_ROWS, value_pad),
            SHARED=p.shared, KEY_RUN=key_run, VALUE_RUN=value_run, UPCAST=self.interpret,
            num_warps=self.launch.warps, num_stages=self.launch.stages,
        )  # fmt: skip
        sinks = self.sums if p.sinks is None else p.sinks
        self.kernels.merge_kernel[(batch, heads)](
            self.parts, self.sums, sinks, self.out, self.splits,
            *self.parts.stride()[:3], *self.sums.stride()[:2], *self.out.stride()[:2],
            V=p.value_width, V_PAD=max(MIN_ROWS, _power(p.value_width)), SPLITS_PAD=max(2, _power(self.splits)),
            SINKS=p.sinks is not None,
        )  # fmt: skip
        return self.out


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _scales(values: Any, scale: Any) -> tuple[Any, int]:
    """The scale tensor and how many values each scale is for; the values themselves and 0 where there is none."""
    return (values, 0) if scale is None else (scale, int(values.shape[3]) // int(scale.shape[3]))
