"""The errors a user may see. Each carries one sentence and the exit code of the process."""

from __future__ import annotations

from collections.abc import Iterable


class KvplanError(Exception):
    """Base of every error kvplan raises on purpose; `str(error)` is one sentence for stderr."""

    exit_code = 2


class InputError(KvplanError):
    """Bad usage, an unreadable or invalid file, or an unknown name. Exit code 2."""


class UnsupportedArchitectureError(KvplanError):
    """A model whose cache layout kvplan can't derive without guessing. Exit code 3."""

    exit_code = 3


def nearest(word: str, choices: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` of `choices` closest to `word` in spelling, best first."""
    import difflib  # only needed once something is already wrong

    folded = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), list(folded), n=count, cutoff=0.4)
    return [folded[match] for match in close]


def did_you_mean(word: str, choices: Iterable[str], count: int = 1) -> str:
    """Return `"; nearest: a, b"` for an error message, or `""` when nothing is close."""
    close = nearest(word, choices, count)
    return f"; nearest: {', '.join(close)}" if close else ""


def show(value: object, limit: int = 60) -> str:
    """Return `repr(value)` cut to `limit` characters, so that a bad file can't flood an error message."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer past Python's digit limit, or deep nesting
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= limit else text[: limit - 3] + "..."
