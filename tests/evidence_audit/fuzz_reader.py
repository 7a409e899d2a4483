"""Fuzz the log readers with atheris: `python -m tests.evidence_audit.fuzz_reader -runs=20000 -max_total_time=60`.

Needs atheris, which isn't among the test dependencies. Starts from the record's own logs.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

with atheris.instrument_imports(include=["kvplan.evidence"]):
    from kvplan.evidence.ask import Given
    from kvplan.evidence.audit import audit
    from kvplan.evidence.reader import read_log

from kvplan.errors import KvplanError
from tests.evidence_audit.engine_text import engine_cases, engine_log
from tests.evidence_audit.log_text import vllm_cases, vllm_log


def read_and_audit(data: bytes) -> None:
    """Read any bytes; whatever is a run is explained. Anything but a KvplanError is a finding of the fuzzer."""
    try:
        runs = read_log(io.BytesIO(data))
        if runs:
            audit(runs, Given()).to_dict()
    except KvplanError:
        pass


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        logs = [vllm_log(case) for case in vllm_cases()] + [engine_log(case) for case in engine_cases()]
        for index, log in enumerate(logs):
            (Path(folder) / f"{index}.log").write_text(log, encoding="utf-8")
        atheris.Setup([sys.argv[0], folder, *sys.argv[1:]], read_and_audit)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
