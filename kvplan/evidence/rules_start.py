"""Findings about starts that were refused or died."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.evidence.findings import Evidence, Finding, finding
from kvplan.units import gib, tokens


def _length(evidence: Evidence) -> Iterator[Finding]:
    event = evidence.run.refused("length-exceeds-pool")
    if event is None:
        return
    run, length = evidence.run, evidence.setting("max_model_len")
    needed, have, longest = run.number("needed"), run.number("available"), run.number("estimated_length")
    predicted = evidence.answer.estimated_max_model_len if evidence.answer is not None else None
    fits = longest or (run.number("tokens") if needed is None else None) or predicted
    asked = f"one request of {tokens(length)} tokens" if isinstance(length, int) else "one request"
    says = f"{asked} needs {gib(needed)} and {gib(max(0, have or 0))} are there" if needed else (
        f"{asked} is more than the pool's {tokens(run.number('tokens') or 0)} tokens"
    )  # fmt: skip
    fix = f"--max-model-len {fits} is the longest that fits" if fits else "give the cache more memory"
    surely = min(fits, predicted) if fits and predicted else fits
    gain = evidence.gain(f"max_model_len -> {surely}", max_model_len=surely) if surely else None
    yield finding(event.kind, says, fix, gain=gain, lines=(event.line,))


def _no_room(evidence: Evidence) -> Iterator[Finding]:
    run, event = evidence.run, evidence.run.refused("no-room-for-cache")
    printed = run.least("available")
    if event is None and (printed is None or int(printed.value) > 0):
        return
    line = event.line if event is not None else printed.line if printed is not None else 0
    used = [term for term in evidence.memory.terms if term.observed is not None and term.name != "KV cache"]
    parts = ", ".join(f"{term.name} {gib(max(0, term.observed or 0))}" for term in used) or "no term is in the log"
    short = f"; {gib(-int(printed.value))} are missing" if printed is not None and int(printed.value) < 0 else ""
    share = f" of a share of {evidence.memory.share:g}" if evidence.memory.share else ""
    yield finding(
        "no-room-for-cache", f"nothing is left for the cache{share}: {parts}{short}",
        "a larger share, more ranks, fewer batched tokens, or a quantized checkpoint", lines=(line,),
    )  # fmt: skip


def _not_free(evidence: Evidence) -> Iterator[Finding]:
    run, event = evidence.run, evidence.run.refused("device-not-free")
    if event is None:
        return
    free, asked, total = run.number("free"), run.number("requested"), run.number("total")
    if free is None or asked is None or not total:
        yield finding(event.kind, "less is free than the share asks for", "free the device or lower the share",
                      lines=(event.line,))  # fmt: skip
        return
    share = int(free / total * 100) / 100
    yield finding(
        event.kind, f"{gib(free)} of {gib(total)} are free, {gib(asked)} are asked for",
        f"stop what else uses the device, or --gpu-memory-utilization {share:g}", lines=(event.line,),
    )  # fmt: skip


def _states(evidence: Evidence) -> Iterator[Finding]:
    event = evidence.run.refused("sequences-exceed-states")
    if event is not None:
        most, asked = evidence.run.number("state_blocks") or 0, evidence.setting("max_num_seqs")
        yield finding(event.kind, f"{asked} sequences are allowed and {most} states fit", f"--max-num-seqs {most}",
                      lines=(event.line,))  # fmt: skip


def _heads(evidence: Evidence) -> Iterator[Finding]:
    event = evidence.run.refused("heads-not-divisible")
    if event is not None:
        heads, asked = evidence.run.number("heads") or 1, evidence.setting("tensor_parallel_size")
        sizes = [size for size in range(1, 65) if heads % size == 0]
        yield finding(event.kind, f"{heads} heads on {asked} ranks",
                      f"--tensor-parallel-size one of {', '.join(map(str, sizes))}", lines=(event.line,))  # fmt: skip


def _beyond_checkpoint(evidence: Evidence) -> Iterator[Finding]:
    event = evidence.run.refused("length-beyond-checkpoint")
    if event is not None:
        asked, most = evidence.setting("max_model_len"), evidence.run.number("derived_length") or 0
        yield finding(event.kind, f"{asked} tokens are asked for, the checkpoint declares {tokens(most)}",
                      f"--max-model-len {most}, or the model's own rope scaling", lines=(event.line,))  # fmt: skip


def _out_of_memory(evidence: Evidence) -> Iterator[Finding]:
    events = [event for event in evidence.run.troubles if event.kind == "out-of-memory"]
    if not events:
        return
    run = evidence.run
    pool_line = max((figure.line for figure in run.figures if figure.name in ("tokens", "kv", "blocks")), default=None)
    after = pool_line is not None and events[0].line > pool_line
    size = run.number("oom_request")
    what = f" when {gib(size)} more were asked for" if size else ""
    when = "after the pool was made: graphs, the sampler or a request took more than the share leaves" if after else (
        "before there was a pool: the weights or the profile run do not fit"
    )  # fmt: skip
    fix = "a smaller share of memory, fewer sequences (--max-num-seqs) or smaller graphs" if after else (
        "more ranks, a quantized checkpoint or fewer batched tokens"
    )  # fmt: skip
    yield finding("out-of-memory", f"the device ran out of memory{what}, {when}", fix,
                  lines=tuple(event.line for event in events[:5]))  # fmt: skip


def _preemptions(evidence: Evidence) -> Iterator[Finding]:
    events = [event for event in evidence.run.troubles if event.kind == "preemption"]
    if events:
        count = evidence.run.number("preemptions") or len(events)
        seqs = evidence.setting("max_num_seqs")
        yield finding(
            "preemptions", f"{count} preemptions: more ran at once than the pool holds",
            f"fewer sequences at once (--max-num-seqs is {seqs})" if seqs else "fewer sequences at once",
            lines=tuple(event.line for event in events[:5]),
        )  # fmt: skip


START_RULES = (_length, _no_room, _not_free, _states, _heads, _beyond_checkpoint, _out_of_memory, _preemptions)
