"""One measured run on a GPU, kept as evidence: python benchmarks/gpu_validate.py [--device cuda:0] [--out FOLDER]

Runs `kvplan validate --full --engine vllm` (a few minutes), prints its table and the targets, and writes the result
(validate-DEVICE.json, which `kvplan validate --replay` judges again) and the device profile (profile-DEVICE.yaml).
`--quick` takes the short set; `--device cpu --quick` tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.files import write_text_atomic
from kvplan.hardware.profile import save_profile
from kvplan.report.validate import print_result, progress
from kvplan.validate.checks import Check, Result
from kvplan.validate.session import Options, run, steps

#: what a Hopper-class card should reach; the first three are rows of the verdict already
TARGETS = (
    ("bytes exact", lambda row: row.section in ("pools", "allocator") and row.rule == "equal"),
    ("capacity exact", lambda row: row.section in ("capacity", "engine")),
    ("share of the copy ceiling: 0.85 bf16, 0.75 fp8", lambda row: "share of the copy ceiling" in row.name),
    ("held-out lengths within 15 %", lambda row: row.name.startswith("held out")),
    ("within 5 % of FlashInfer", lambda row: row.name.startswith("FlashInfer's time")),
)
FLASHINFER_LEAST = 0.95


def target_line(name: str, rows: list[Check]) -> str:
    """One target: met, missed with the first row that missed it, or not measured."""
    measured = [row for row in rows if row.measured is not None]
    if not measured:
        return f"{name}: not measured"
    missed = [row for row in measured if row.status == "fail"]
    if name.endswith("FlashInfer"):
        missed = [row for row in measured if (row.measured or 0) < FLASHINFER_LEAST]
    if not missed and all(row.status == "info" for row in measured) and not name.endswith("FlashInfer"):
        return f"{name}: measured, not judged here"
    return f"{name}: " + (
        "met" if not missed else f"MISSED by {missed[0].case} / {missed[0].name}: {missed[0].measured}"
    )


def keep(result: Result, folder: Path) -> None:
    """Write the result and the profile under the device's name."""
    slug = re.sub(r"[^a-z0-9]+", "-", result.device.name.lower()).strip("-")
    document = json.dumps(result.to_dict(), indent=2, ensure_ascii=False)
    write_text_atomic(folder / f"validate-{slug}.json", document + "\n")
    if result.profile is not None:
        save_profile(folder / f"profile-{slug}.yaml", result.profile)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    options = Options(device=given.device, engine="vllm", full=not given.quick)
    start = time.perf_counter()
    try:
        with progress(steps(options)) as tick:
            result = run(options, tick)
        keep(result, given.out)
    except KvplanError as error:
        print(f"gpu_validate: {error}", file=sys.stderr)
        return error.exit_code
    print_result(result)
    for name, belongs in TARGETS:
        print(target_line(name, [row for row in result.checks if belongs(row)]))
    print(f"{time.perf_counter() - start:.0f} s")
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
