"""Logs as they come: colours, prefixes, JSON, restarts, interleaved ranks, cut lines, noise."""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.evidence import scan
from kvplan.evidence.patterns import catalog
from kvplan.evidence.reader import MOST_FIGURES, read_lines, read_log
from kvplan.evidence.runs import LogRun
from tests.evidence_audit.engine_text import engine_cases, engine_log
from tests.evidence_audit.log_text import vllm_cases, vllm_log

GIB = 1 << 30
LOGS = [vllm_log(case) for case in vllm_cases()] + [engine_log(case) for case in engine_cases()]
LOG = next(vllm_log(case) for case in vllm_cases() if case["id"] == "v1-qwen3-235b-fp8-4xl40s-ep")


def figures(run: LogRun) -> set[tuple[str, object]]:
    return {(figure.name, figure.value) for figure in run.figures}


def only(text: str | bytes) -> LogRun:
    data = text.encode() if isinstance(text, str) else text
    (run,) = read_log(io.BytesIO(data))
    return run


def test_figures_carry_line_rank_and_rounding() -> None:
    run = only(LOG)
    available = run.last("available")
    assert available is not None
    assert (available.value, available.line, available.rank) == (round(10.65 * GIB), 5, "TP0")
    assert available.half == GIB * 0.005
    assert run.number("tokens") == 238208
    assert run.flags["tensor_parallel_size"] == 4
    assert (run.engine, run.version) == ("vllm", "0.10.2")


@pytest.mark.parametrize(
    "dress",
    [
        lambda line: f"\x1b[36m{line[:10]}\x1b[0;0m{line[10:]}\r",
        lambda line: f"2026-01-02T10:00:00.123456789Z stderr F {line}",
        lambda line: f"vllm-0  | {line}",
        lambda line: f"pod/vllm-7d9f/server {line}",
        lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-01-02T10:00:00Z"}),
        lambda line: json.dumps({"level": "INFO", "message": line, "logger": "vllm"}),
        lambda line: "2026-01-02T10:00:00Z " + json.dumps({"msg": json.dumps({"message": line})}),
        lambda line: f"Loading:  50%|#####     | 1/2\rLoading: 100%|##########| 2/2\r{line}",
        lambda line: line + "\r",
    ],
    ids=["colours", "cri", "compose", "kubectl", "docker-json", "json", "json-in-json", "progress-bar", "crlf"],
)
def test_dressed_lines_read_alike(dress: object) -> None:
    dressed = "\n".join(dress(line) for line in LOG.splitlines())  # type: ignore[operator]
    assert figures(only(dressed + "\n")) == figures(only(LOG))


def test_gzip_and_pipe_read_alike(tmp_path: Path) -> None:
    assert figures(only(gzip.compress(LOG.encode()))) == figures(only(LOG))
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(LOG.encode()))
    code = "import sys; from kvplan.evidence.reader import read_log; print(len(read_log(sys.stdin.buffer)[0].figures))"
    with packed.open("rb") as stream:
        piped = subprocess.run([sys.executable, "-c", code], input=stream.read(), capture_output=True, check=True)
    assert int(piped.stdout) == len(only(LOG).figures)


def test_a_packed_log_that_is_cut_off_is_read_up_to_there() -> None:
    noise = random.Random(3).randbytes(3 << 20).hex().encode()
    lines = b"\n".join(noise[index : index + 120] for index in range(0, len(noise), 120))
    packed = gzip.compress(LOG.encode() + lines)
    run = only(packed[: len(packed) * 2 // 3])
    assert figures(run) == figures(only(LOG))
    assert run.cut


def test_each_restart_is_a_run() -> None:
    runs = read_log(io.BytesIO((LOG * 3).encode()))
    lines = LOG.count("\n")
    assert [run.first_line for run in runs] == [1, 1 + lines, 1 + 2 * lines]
    assert {frozenset(figures(run)) for run in runs} == {frozenset(figures(only(LOG)))}


def test_a_start_that_died_before_any_figure_is_a_run_of_its_own() -> None:
    head = "\n".join(LOG.splitlines()[:2]) + "\nTraceback (most recent call last):\nKeyError: 'x'\n"
    first, second = read_log(io.BytesIO((head + LOG).encode()))
    assert first.number("tokens") is None
    assert second.number("tokens") == 238208


def test_engines_in_one_file_are_told_apart() -> None:
    sglang = next(engine_log(case) for case in engine_cases() if case["engine"] == "sglang")
    assert [run.engine for run in read_log(io.BytesIO((LOG + sglang + LOG).encode()))] == ["vllm", "sglang", "vllm"]


def test_eight_interleaved_ranks_keep_their_figures() -> None:
    rng = random.Random(7)
    ranks = [
        [f"(Worker_TP{rank} pid={rank}) INFO Available KV cache memory: {10 + rank / 100:.2f} GiB",
         f"(Worker_TP{rank} pid={rank}) INFO Graph capturing finished in 20 secs, took 0.{rank}5 GiB"]
        for rank in range(8)
    ]  # fmt: skip
    mixed = [LOG.splitlines()[2]]
    while any(ranks):
        lane = rng.choice([lane for lane in ranks if lane])
        mixed.append(lane.pop(0))
    run = only("\n".join(mixed) + "\n")
    least = run.least("available")
    assert len(run.all("available")) == 8
    assert least is not None
    assert (least.rank, least.value) == ("TP0", 10 * GIB)
    assert {figure.rank for figure in run.all("graphs")} == {f"TP{rank}" for rank in range(8)}


def test_lines_run_together_lose_nothing_and_make_nothing_up() -> None:
    head = LOG.splitlines()[2] + "\n"
    run = only(head + "INFO GPU KV cache size: 17INFO GPU KV cache size: 178,880 tokens8,880 tokens\n")
    assert [figure.value for figure in run.all("tokens")] == [178880]


@pytest.mark.parametrize("text", LOGS[:6] + LOGS[60:66] + LOGS[100:106], ids=range(18))
def test_a_log_cut_anywhere_invents_no_figure(text: str) -> None:
    whole = {(name, value) for run in read_log(io.BytesIO(text.encode())) for name, value in figures(run)}
    data = text.encode()
    for end in range(0, len(data), 3):
        for run in read_log(io.BytesIO(data[:end])):
            assert figures(run) <= whole


def test_a_figure_that_is_cut_off_is_said() -> None:
    case = next(case for case in vllm_cases() if case["id"] == "v0-llama32-11b-vision-h100")
    text = vllm_log(case)
    end = text.index("# CPU blocks: 1638") + len("# CPU blocks: 16")
    run = only(text[:end])
    assert run.number("blocks") is None
    assert run.cut == (text.count("\n", 0, end) + 1,)


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\x00" * 5000, bytes(range(256)) * 400, b"\x1f\x8b", b"GiB KV cache"])
def test_what_is_no_log_has_no_run(data: bytes) -> None:
    if data.startswith(b"\x1f\x8b"):
        with pytest.raises(InputError, match="can't be read"):
            read_log(io.BytesIO(data))
    else:
        assert read_log(io.BytesIO(data)) == ()


def test_a_traceback_after_the_figures_changes_none() -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 12, in y\nRuntimeError: 24.00 GiB\n'
    assert figures(only(LOG + trace)) == figures(only(LOG))


def test_quiet_hours_and_a_late_restart_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "FULL_BYTES", 4096)
    monkeypatch.setattr(scan, "CHUNK_BYTES", 8192)
    serving = "INFO Avg generation throughput: 3.1 tokens/s, GPU KV cache usage: 3.1%\n" * 5000
    trouble = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0\n"
    first, second = read_log(io.BytesIO((LOG + serving + trouble + serving + LOG).encode()))
    assert [event.line for event in first.troubles] == [LOG.count("\n") + 5001]
    assert second.first_line == LOG.count("\n") + 10002
    assert figures(second) == figures(only(LOG))


def test_a_file_is_numbered_like_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "FULL_BYTES", 4096)
    monkeypatch.setattr(scan, "CHUNK_BYTES", 8192)
    serving = "INFO Avg generation throughput: 3.1 tokens/s\n" * 3001
    text = LOG + serving + LOG + serving + serving + LOG + "the end"
    path = tmp_path / "server.log"
    path.write_text(text)
    with path.open("rb", buffering=0) as stream:
        assert read_log(stream) == read_log(io.BytesIO(text.encode()))


def test_a_flood_of_figures_is_bounded_and_keeps_the_last() -> None:
    head = LOG.splitlines()[2]
    lines = [f"INFO Available KV cache memory: {value}.00 GiB" for value in range(1, 3 * MOST_FIGURES)]
    (run,) = read_lines([head, *lines])
    assert len(run.all("available")) == MOST_FIGURES + 1
    assert run.number("available") == (3 * MOST_FIGURES - 1) * GIB


def test_memory_stays_constant() -> None:
    class Endless(io.RawIOBase):
        """64 MiB without a newline, then with."""

        def __init__(self) -> None:
            self.left = 64

        def readable(self) -> bool:
            return True

        def readinto(self, room: memoryview) -> int:  # type: ignore[override]
            self.left -= 1
            piece = b"GiB KV cache size: tokens " * 50_000 if self.left > 32 else b"KV cache usage\n" * 80_000
            size = min(len(room), len(piece)) if self.left >= 0 else 0
            room[:size] = piece[:size]
            return size

        def peek(self, size: int = 0) -> bytes:
            return b"xx"

    tracemalloc.start()
    assert read_log(Endless()) == ()  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_a_damaged_setting_is_refused_in_words() -> None:
    from kvplan.evidence.ask import Given
    from kvplan.evidence.audit import audit

    line = "non-default args: {'model': 'Qwen/Qwen3-8B', 'num_gpu_blocks_override':t 1487, 'max_model_len': 40960}"
    answer = audit(read_lines([LOG.splitlines()[0], line, "INFO Available KV cache memory: 50.32 GiB"]), Given())
    assert answer.checks == ()
    assert any("num-gpu-blocks-override" in text for text in answer.warnings)


LINES = sorted({line for text in LOGS for line in text.splitlines()})


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from(LINES).map(str.encode),
            st.tuples(st.sampled_from(LINES), st.integers(0, 300), st.binary(max_size=6), st.integers(0, 300)).map(
                lambda item: item[0].encode()[: item[1]] + item[2] + item[0].encode()[item[3] :]
            ),
            st.sampled_from(sorted(catalog().by_anchor)).map(str.encode),
            st.binary(max_size=60),
        ),
        max_size=12,
    ),
    st.sampled_from([b"\n", b"", b"\r\n", b"\x00"]),
)
def test_any_bytes_are_read_without_a_crash(pieces: list[bytes], between: bytes) -> None:
    try:
        runs = read_log(io.BytesIO(between.join(pieces)))
    except InputError:
        assert pieces[0].startswith(b"\x1f")
        return
    for run in runs:
        for figure in run.figures:
            assert figure.line >= run.first_line
            # each digit of a figure stood in the log
            if figure.unit == "count":
                assert str(figure.value).lstrip("-") in b"".join(pieces).decode(errors="replace").replace(",", "")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LOGS), st.data())
def test_damaged_logs_are_audited_without_a_crash(text: str, data: st.DataObject) -> None:
    from kvplan.errors import KvplanError
    from kvplan.evidence.ask import Given
    from kvplan.evidence.audit import audit

    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(raw) - 1))
        raw[index] = data.draw(st.integers(0, 255))
    runs = read_log(io.BytesIO(bytes(raw)))
    if runs:
        try:
            audit(runs, Given()).to_dict()
        except KvplanError as error:
            assert "\n" not in str(error)
