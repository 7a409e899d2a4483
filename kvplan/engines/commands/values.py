"""A flag's value as its engine would read it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from kvplan.engines.commands.flags import Flag
from kvplan.engines.commands.words import Word
from kvplan.engines.vllm.settings import human_integer
from kvplan.errors import InputError, show

_TRUE = frozenset({"1", "t", "true", "yes", "y", "on", "enabled"})
_FALSE = frozenset({"0", "f", "false", "no", "n", "off", "disabled"})
_LONGEST_NUMBER = 40
_DEEPEST = 40


def spelled(flag: Flag) -> str:
    """What a message calls the flag: its own spelling, or its variable."""
    return flag.names[0] if flag.names else str(flag.env)


def read_value(flag: Flag, words: Sequence[Word]) -> Any:
    """The typed value of `flag`; None when a part of it is unresolved.

    Raises InputError for text that the engine refuses.
    """
    if any(word.unknown for word in words):
        return None
    texts = [word.text for word in words]
    match flag.kind:
        case "ints":
            return [_whole(flag, part) for text in texts for part in text.split(",")]
        case "floats":
            return [_decimal(flag, part) for text in texts for part in text.split(",")]
        case "words" | "two_words":
            return texts if len(texts) > 1 else texts[0]
    return _single(flag, texts[0])


def _single(flag: Flag, text: str) -> Any:
    match flag.kind:
        case "int":
            return _whole(flag, text)
        case "float":
            return _decimal(flag, text)
        case "tokens":
            return human_integer(text, spelled(flag))
        case "tokens_or_auto":
            return -1 if text.strip().lower() in ("auto", "-1") else human_integer(text, spelled(flag))
        case "int_or_word":
            return int(text) if text.removeprefix("-").isdecimal() and len(text) < _LONGEST_NUMBER else text
        case "json":
            return read_json(text, spelled(flag))
        case "json_or_word":
            return read_json(text, spelled(flag)) if text.strip().startswith("{") else text
        case "boolean" | "switch" | "toggle":
            return read_boolean(text, spelled(flag))
    return text


def _whole(flag: Flag, text: str) -> int:
    try:
        if len(text) < _LONGEST_NUMBER and "_" not in text:
            return int(text)
    except ValueError:
        pass
    raise InputError(f"{spelled(flag)}: found {show(text)}, expected a whole number in plain digits")


def _decimal(flag: Flag, text: str) -> float:
    try:
        number = float(text) if len(text) < _LONGEST_NUMBER and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{spelled(flag)}: found {show(text)}, expected a number")
    return number


def read_boolean(text: str, field: str) -> bool:
    """A yes or no as engines spell it in variables. Raises InputError for anything else."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise InputError(f"{field}: found {show(text)}, expected true or false")


def read_json(text: str, field: str) -> Any:
    """A JSON value of bounded depth, the last of two equal keys winning as in Python's reader. Raises InputError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{field}: found {show(text)}, expected JSON") from None
    if deeper_than(value, _DEEPEST):
        raise InputError(f"{field}: found JSON nested deeper than {_DEEPEST} levels, expected a flatter value")
    return value


def deeper_than(value: Any, limit: int) -> bool:
    """Whether lists and mappings nest deeper than `limit`."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True
