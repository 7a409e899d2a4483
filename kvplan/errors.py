"""The errors a user may see. Each carries one sentence and the exit code of the process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice

MAX_SENTENCE = 4000


class KvplanError(Exception):
    """Base of every error kvplan raises on purpose; `str(error)` is one printable sentence for stderr."""

    exit_code = 2

    def __init__(self, sentence: str = "") -> None:
        super().__init__(printable(sentence, MAX_SENTENCE))


class InputError(KvplanError):
    """Bad usage, an unreadable or invalid file, or an unknown name. Exit code 2."""


class UnsupportedArchitectureError(KvplanError):
    """A model whose cache layout kvplan can't derive without guessing. Exit code 3."""

    exit_code = 3


def printable(text: str, limit: int) -> str:
    """Return `text` with control characters written out, cut in the middle to `limit` characters."""
    if len(text) > limit:
        text = f"{text[: limit // 2 - 3]} ... {text[-limit // 2 + 2 :]}"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def nearest(word: str, choices: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` of `choices` close to `word` in spelling, best first."""
    import difflib  # only needed once something is already wrong

    folded = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), list(folded), n=count, cutoff=0.6)
    return [folded[match] for match in close]


def did_you_mean(word: str, choices: Iterable[str], count: int = 1) -> str:
    """Return `"; nearest: a, b"` for an error message, or `""` when nothing is close."""
    close = nearest(word, choices, count)
    return f"; nearest: {', '.join(close)}" if close else ""


def did_you_mean_name(word: str, spellings: Mapping[str, str]) -> str:
    """As did_you_mean, with the name that the closest of many spellings stands for."""
    close = nearest(word, spellings)
    return f"; nearest: {spellings[close[0]]}" if close else ""


def show(value: object, limit: int = 60) -> str:
    """Return a value as a JSON or YAML file spells it, cut to `limit` characters."""
    try:
        text = _spelt(value, limit)
    except (ValueError, RecursionError):  # an integer past Python's digit limit, or deep nesting
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _spelt(value: object, limit: int, depth: int = 3) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
    if isinstance(value, list | tuple | dict) and value and not depth:
        return "..."
    if isinstance(value, list | tuple):
        return f"[{', '.join(_spelt(item, limit, depth - 1) for item in value[:limit])}]"
    if isinstance(value, dict):
        pairs = [(_spelt(key, limit), _spelt(item, limit, depth - 1)) for key, item in islice(value.items(), limit)]
        return f"{{{', '.join(f'{key}: {item}' for key, item in pairs)}}}"
    if hasattr(value, "isoformat"):
        return f"the date {value.isoformat()}"
    return repr(value)
