"""Option strings of runtime techniques: `name:value,key=value,flag`, parsed once for the command line and YAML."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from kvplan.errors import InputError, did_you_mean, show
from kvplan.units import MAX_TOKENS, parse_bytes, parse_tokens

MAX_OPTION_LENGTH = 200


@dataclass
class Option:
    """One parsed option string. `take_*` hand values out; `finish` refuses what nobody took."""

    field: str
    text: str
    name: str
    value: str | None
    pairs: dict[str, str | None]

    def tokens(self, key: str, default: int) -> int:
        """A token count under `key`."""
        found = self._pop(key)
        return default if found is None else parse_tokens(found, f"{self.field} {key}")

    def whole(self, key: str, default: int, low: int = 0, high: int = MAX_TOKENS) -> int:
        """A whole number under `key`."""
        found = self._pop(key)
        if found is None:
            return default
        if not found.isdecimal() or len(found) > 15 or not low <= int(found) <= high:
            raise InputError(f"{self.field} {key}: found {show(found)}, expected a whole number from {low} to {high}")
        return int(found)

    def bandwidth(self, key: str) -> int | None:
        """Bytes a second under `key`, such as 50GB/s."""
        found = self._pop(key)
        return None if found is None else parse_bytes(found.removesuffix("/s"), f"{self.field} {key}")

    def share(self, key: str, default: float | None) -> float | None:
        """A number from 0 to 1 under `key`."""
        found = self._pop(key)
        return default if found is None else parse_share(found, f"{self.field} {key}")

    def word(self, key: str, choices: Collection[str], default: str) -> str:
        """One of `choices` under `key`."""
        found = self._pop(key)
        if found is None:
            return default
        if found not in choices:
            hint = did_you_mean(found, choices)
            raise InputError(f"{self.field} {key}: found {show(found)}, expected {' or '.join(choices)}{hint}")
        return found

    def flag(self, key: str) -> bool:
        """Whether the bare word `key` was given."""
        if key not in self.pairs:
            return False
        if self.pairs.pop(key) is not None:
            raise InputError(f"{self.field} {key}: found a value, expected the bare word {key}")
        return True

    def finish(self, known: Collection[str]) -> None:
        """Raises InputError naming the first key that is none of `known`."""
        for key in self.pairs:
            listed = f"one of {', '.join(known)}" if known else "no further options"
            raise InputError(
                f"{self.field}: found {show(key)} in {show(self.text)}, expected {listed}{did_you_mean(key, known)}"
            )

    def _pop(self, key: str) -> str | None:
        if key not in self.pairs:
            return None
        found = self.pairs.pop(key)
        if not found:
            raise InputError(f"{self.field} {key}: found no value, expected {key}=VALUE")
        return found


def parse_option(text: str, field: str, example: str) -> Option:
    """Split `name:value,key=value,flag`. `example` is shown when the text is no such string."""
    name, colon, rest = text.strip().partition(":")
    if not name or len(text) > MAX_OPTION_LENGTH or (colon and not rest):
        raise InputError(f"{field}: found {show(text)}, expected a technique such as {example}")
    value: str | None = None
    pairs: dict[str, str | None] = {}
    for position, item in enumerate(rest.split(",") if rest else ()):
        key, equals, given = item.strip().partition("=")
        key = key.strip().lower().replace("_", "-")
        if position == 0 and not equals and key[:1].isdigit():
            value = item.strip()
            continue
        if not key or key in pairs:
            raise InputError(f"{field}: found {show(item)} in {show(text)}, expected each option once, as key=value")
        pairs[key] = given.strip() if equals else None
    return Option(field, text, name.strip().lower(), value, pairs)


def parse_share(text: str, field: str) -> float:
    """Parse a number from 0 to 1. Raises InputError otherwise."""
    try:
        number = float(text) if len(text) <= 20 else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(f"{field}: found {show(text)}, expected a number from 0 to 1")
    return number
