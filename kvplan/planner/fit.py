"""`kvplan plan --fit`: one question in words, answered by `kvplan estimate` or by an engine's plan.

    question = "largest context" | "most users" | "smallest gpu", then clauses in any order, each once:
    clause   = "for" N "user(s)" | "at" T ["tokens" | "context"] | "on" [N ["x"]] GPU

`2x h100`, `2 x h100` and `h100` name devices; `128k` is 131,072 tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Literal

from kvplan.answers.fit import MAX_BATCH
from kvplan.engines.native import native_settings
from kvplan.errors import InputError, KvplanError, did_you_mean, show
from kvplan.estimator import estimate
from kvplan.hardware.accelerators import Accelerator, all_accelerators, find
from kvplan.record import record
from kvplan.serving import serve
from kvplan.spec.resolve import LoadedModel
from kvplan.units import MAX_TOKENS, parse_tokens, tokens

Goal = Literal["largest context", "most users", "smallest gpu"]
GOALS: tuple[Goal, ...] = ("largest context", "most users", "smallest gpu")
CLAUSES = ("for N users", "at 128k", "on 2x h100")
#: How many devices "smallest gpu" tries, the fewest first.
COUNTS = (1, 2, 4, 8, 16)
_WORD = re.compile(r"\S+")
_COUNT = re.compile(r"([0-9]{1,6})x?")
_FUSED = re.compile(r"([0-9]{1,6})x([A-Za-z].*)")


@record
class Question:
    """A parsed question; None is not said. `count` devices of `gpu`."""

    goal: Goal
    users: int | None = None
    context: int | None = None
    gpu: str | None = None
    count: int | None = None


@record
class FitAnswer:
    """`value` is the context in tokens, the users, or the devices; None where nothing fits."""

    schema_version: int
    command: Literal["plan --fit"]
    question: str
    goal: Goal
    verdict: str
    value: int | None
    users: int | None
    context_tokens: int | None
    gpu: str | None
    gpu_count: int | None
    engine: str | None
    assumptions: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.value is None else 0

    def to_dict(self) -> dict[str, Any]:
        """The plain JSON document."""
        return asdict(self)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the document that `FitAnswer.to_dict` returns."""
    from kvplan.answers.schema import document_schema

    return document_schema(FitAnswer, "kvplan plan --fit")


def parse_question(text: str) -> Question:
    """Parse a question. Raises InputError naming the word and its column."""
    words = [(match.group().lower(), match.start() + 1) for match in _WORD.finditer(text)]
    opening = " ".join(word for word, _ in words[:2])
    if len(text) > 200 or opening not in GOALS:
        hint = did_you_mean(opening, GOALS) if len(text) <= 200 else ""
        raise InputError(f"--fit: found {show(text)}, expected it to begin with one of {', '.join(GOALS)}{hint}")
    found: dict[str, Any] = {"goal": opening}
    rest = words[2:]
    while rest:
        (word, column), rest = rest[0], rest[1:]
        reader = {"for": _users, "at": _context, "on": _device}.get(word)
        if reader is None:
            raise _wrong(word, column, f"one of {', '.join(CLAUSES)}")
        values, rest = reader(rest, column)
        if values.keys() & found.keys():
            raise _wrong(word, column, "each clause once")
        found |= values
    return _complete(Question(**found))


def _wrong(word: str, column: int, expected: str) -> InputError:
    return InputError(f"--fit: column {column}: found {show(word)}, expected {expected}")


_Words = list[tuple[str, int]]


def _users(words: _Words, column: int) -> tuple[dict[str, Any], _Words]:
    if len(words) < 2 or not words[0][0].isdecimal() or words[1][0] not in ("user", "users"):
        raise _wrong(*(words[0] if words else ("nothing", column)), "a number of users such as 64 users")
    count = int(words[0][0][:12])
    if not 1 <= count <= MAX_BATCH:
        raise _wrong(*words[0], f"1 to {MAX_BATCH:,} users")
    return {"users": count}, words[2:]


def _context(words: _Words, column: int) -> tuple[dict[str, Any], _Words]:
    if not words:
        raise _wrong("nothing", column, "a length such as 128k")
    length = parse_tokens(words[0][0], f"--fit: column {words[0][1]}")
    rest = words[1:]
    if rest and rest[0][0] in ("tokens", "context"):
        rest = rest[1:]
    return {"context": length}, rest


def _device(words: _Words, column: int) -> tuple[dict[str, Any], _Words]:
    """`2x h100`, `2 x h100`, `2xh100`, `h100`; a name ends before the next clause."""
    if not words:
        raise _wrong("nothing", column, "devices such as 2x h100")
    count = 1
    first, where = words[0]
    fused = _FUSED.fullmatch(first)
    if fused is not None:
        count, words = int(fused[1]), [(fused[2], where + len(fused[1]) + 1), *words[1:]]
    elif (counted := _COUNT.fullmatch(first)) is not None:
        count, words = int(counted[1]), words[1:]
        if words and words[0][0] == "x" and not first.endswith("x"):
            words = words[1:]
    name: list[str] = []
    while words and words[0][0] not in ("for", "at", "on"):
        name.append(words[0][0])
        words = words[1:]
    if not name or count < 1:
        raise _wrong(first, where, "devices such as 2x h100")
    return {"gpu": find(" ".join(name), f"--fit: column {where}").slug, "count": count}, words


def _complete(question: Question) -> Question:
    needs = {"largest context": ("gpu",), "most users": ("context", "gpu"), "smallest gpu": ()}[question.goal]
    also = {"context": "at 128k", "gpu": "on 2x h100"}
    for name in needs:
        if getattr(question, name) is None:
            raise InputError(f"--fit: found {question.goal!r} alone, expected also a clause such as {also[name]!r}")
    asked = {"largest context": "context", "most users": "users", "smallest gpu": "gpu"}[question.goal]
    if getattr(question, asked) is not None:
        raise InputError(f"--fit: found {question.goal!r} with a fixed {asked}, expected that to be the question")
    return question


def answer_fit(
    loaded: LoadedModel,
    text: str,
    *,
    engine: str | None = None,
    kv_cache_dtype: str = "auto",
    gpus: Iterable[str] | None = None,
) -> FitAnswer:
    """Answer a question for one model.

    Without `engine` "fits" means what `kvplan estimate --gpu` means by it; with it, that the engine starts and holds so
    many requests at once. `gpus` are the devices that "smallest gpu" tries, all known ones by default; the smallest is
    of the fewest devices the one with the least memory. Raises InputError.
    """
    question = parse_question(text)
    limit = loaded.spec.max_context or MAX_TOKENS
    users = question.users or 1
    fits = _engine_fits(loaded, engine, kv_cache_dtype) if engine else _estimate_fits(loaded, kv_cache_dtype)
    device, count, value = question.gpu, question.count, None
    context = question.context
    if question.goal == "largest context":
        assert device is not None
        assert count is not None
        value = _most(lambda length: fits(length, users, str(device), count or 1), limit) or None
        context = value
        said = f"{tokens(value)} tokens" if value else "not even one token"
        verdict = f"{said} of context fit {loaded.spec.id} for {_users_words(users)} on {_devices(device, count)}."
        if value == limit and loaded.spec.max_context:
            verdict = verdict[:-1] + ", which is all the model declares."
    elif question.goal == "most users":
        assert device is not None
        assert count is not None
        assert context is not None
        value = _most(lambda number: fits(context or 1, number, str(device), count or 1), MAX_BATCH) or None
        said = f"{value:,} user{'s' * (value != 1)}" if value else "no user"
        verdict = f"{said} at {tokens(context)} tokens each fit {loaded.spec.id} on {_devices(device, count)}."
    else:
        context = context or min(limit, 8192)
        found = _smallest(fits, context, users, gpus)
        device, count = (found[0].slug, found[1]) if found is not None else (None, None)
        value = count
        need = f"{_users_words(users)} at {tokens(context)} tokens"
        verdict = (
            f"{_devices(device, count)} is the smallest that holds {loaded.spec.id} for {need}."
            if device is not None and count is not None
            else f"no device holds {loaded.spec.id} for {need}, not even {COUNTS[-1]} of one."
        )
    return FitAnswer(
        1, "plan --fit", text, question.goal, verdict, value,
        value if question.goal == "most users" else users, context, device, count, engine,
        _assumptions(engine, question, context),
    )  # fmt: skip


def _users_words(users: int) -> str:
    return f"{users:,} user{'s' * (users != 1)}"


def _devices(device: str, count: int) -> str:
    return device if count == 1 else f"{count} x {device}"


def _assumptions(engine: str | None, question: Question, context: int | None) -> tuple[str, ...]:
    notes = [
        f"{engine} starts with that length and holds so many requests of it at once, in the memory predicted for it"
        if engine
        else "90 % of each device's memory for weights and cache, as in `kvplan estimate --gpu`; name an --engine for "
        "its own plan",
        "several devices are tensor-parallel ranks",
    ]
    if question.goal == "smallest gpu" and question.context is None:
        notes.append(f"no length was given: {tokens(context or 0)} tokens")
    return tuple(notes)


Fits = Callable[[int, int, str, int], bool]


def _estimate_fits(loaded: LoadedModel, dtype: str) -> Fits:
    def fits(context: int, users: int, device: str, count: int) -> bool:
        answer = estimate(loaded, ctx=context, batch=users, kv_cache_dtype=dtype, gpu=device, num_gpus=count)
        return answer.fit is not None and answer.fit.fits

    return fits


def _engine_fits(loaded: LoadedModel, engine: str, dtype: str) -> Fits:
    def fits(context: int, users: int, device: str, count: int) -> bool:
        options = {"max_model_len": context, "kv_cache_dtype": dtype, "tensor_parallel_size": count}
        settings = native_settings(engine, options)
        answer = serve(loaded, engine, find(device), settings, help_wanted=False).engine
        return answer.refused is None and (answer.max_concurrency or 0.0) >= users

    return fits


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """The greatest number up to `limit` that fits, 0 for none: what fits, fits in smaller measure too."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, high * 2
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smallest(fits: Fits, context: int, users: int, gpus: Iterable[str] | None) -> tuple[Accelerator, int] | None:
    """The least count, then the least memory, then the first by name."""
    devices = all_accelerators() if gpus is None else tuple(find(name.strip(), "--gpus") for name in gpus)
    ordered = sorted(set(devices), key=lambda device: (device.memory_bytes, device.slug))
    refused: KvplanError | None = None
    tried = False
    for count in COUNTS:
        for device in ordered:
            try:
                if fits(context, users, device.slug, count):
                    return device, count
                tried = True
            except InputError as error:
                refused = error
    if refused is not None and not tried:
        raise refused
    return None
