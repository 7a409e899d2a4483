"""The real llama.cpp as an oracle: shapes and settings drawn here, asked of both. Skipped without its package."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from kvplan.engines.base import Device, Parallelism
from kvplan.engines.llama_cpp.engine import ENGINE
from kvplan.errors import InputError
from kvplan.spec.importers.gguf import spec_from_metadata
from kvplan.units import MIB
from tests.engines.llama_cpp_oracle import PACKAGE

try:
    installed: str | None = version("xllamacpp")
except PackageNotFoundError:
    installed = None

pytestmark = pytest.mark.skipif(installed != PACKAGE, reason=f"needs xllamacpp {PACKAGE}, found {installed}")

FOLDER = Path(__file__).parents[1] / "golden/engines"
CACHE = re.compile(
    r"\(\s*(\d+) cells,\s*(\d+) layers,\s*\d+/(\d+) seqs\), K \(\w+\):\s*([\d.]+) MiB, V \(\w+\):\s*([\d.]+) MiB"
)
STATE = re.compile(r"seqs\s*\d+ rs_seq\), R \(f32\):\s*([\d.]+) MiB, S \(f32\):\s*([\d.]+) MiB")
TYPES = ("f16", "bf16", "f32", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


def drawn(seed: int, count: int) -> list[dict[str, Any]]:
    """Settings nobody chose by hand, the same on every run."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        kind = draw.choice(TYPES)
        found.append(
            {
                "n_ctx": draw.randint(1, 60_000), "n_seq_max": draw.randint(1, 9), "kv_unified": draw.random() < 0.4,
                "n_ubatch": draw.choice([64, 128, 512, 1024]), "n_batch": 2048, "swa_full": draw.random() < 0.2,
                "type_k": kind, "type_v": kind if draw.random() < 0.7 else draw.choice(TYPES),
                "flash_attn": draw.choice(["auto", "on", "off"]), "n_rs_seq": draw.choice([0, 0, 1, 3]),
            }
        )  # fmt: skip
    return found


def jobs() -> list[dict[str, Any]]:
    models = [
        model
        for name in ("llama_cpp.json", "llama_cpp_more.json")
        for model in json.loads((FOLDER / name).read_text(encoding="utf-8"))["models"]
    ]
    wanted = {"gemma-3-27b", "gpt-oss-20b", "deepseek-v3", "deepseek-v4-flash", "qwen35", "lfm2-1.2b", "jamba", "rwkv7"}
    return [
        {"arch": model["arch"], "metadata": model["metadata"] | {"attention.layer_norm_rms_epsilon": 1e-5,
         "attention.layer_norm_epsilon": 1e-5}, "params": drawn(index, 8)}
        for index, model in enumerate(models) if model["model"] in wanted
    ]  # fmt: skip


def test_the_engine_says_the_same() -> None:
    asked = jobs()
    assert len(asked) == 8
    script = [sys.executable, str(Path(__file__).with_name("llama_cpp_oracle.py"))]
    done = subprocess.run(script, input=json.dumps(asked), capture_output=True, text=True, timeout=300, check=True)
    compared = 0
    for job, answers in zip(asked, json.loads(done.stdout), strict=True):
        arch = job["arch"]
        metadata = {"general.architecture": arch, **{f"{arch}.{key}": value for key, value in job["metadata"].items()}}
        spec = spec_from_metadata(metadata, label=arch, name=arch)
        for settings, lines in zip(job["params"], answers, strict=True):
            if lines is None:
                with pytest.raises(InputError):
                    ENGINE.plan(spec, settings, Parallelism(), [1 << 60], Device("any", 1 << 50))
                continue
            answer = ENGINE.plan(spec, settings, Parallelism(), [1 << 60], Device("any", 1 << 50))
            text = "\n".join(lines)
            caches = [match.groups() for match in CACHE.finditer(text) if int(match.group(2))]
            pools = [pool for pool in answer.pools if "KV cache" in pool.name and pool.layers]
            for pool, (cells, layers, streams, k, v) in zip(pools, caches, strict=True):
                assert (pool.slots, pool.layers) == (int(cells) * int(streams), int(layers)), (arch, settings)
                assert pool.parts["K"] / MIB == pytest.approx(float(k), abs=0.006), (arch, settings)
                assert pool.parts["V"] / MIB == pytest.approx(float(v), abs=0.006), (arch, settings)
                compared += 1
            states = [pool for pool in answer.pools if pool.name == "recurrent state"]
            for pool, (r, s) in zip(states, STATE.findall(text), strict=True):
                assert pool.parts["R"] / MIB == pytest.approx(float(r), abs=0.006), (arch, settings)
                assert pool.parts["S"] / MIB == pytest.approx(float(s), abs=0.006), (arch, settings)
                compared += 1
    assert compared > 60
