"""An engine's settings: which flags it has, of which type, with which defaults; read from what the user gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kvplan.engines.base import Setting, flag_name
from kvplan.errors import InputError, did_you_mean, show
from kvplan.units import parse_bytes, parse_tokens

_TRUE = ("", "true", "1", "yes", "on", "enabled")
_FALSE = ("false", "0", "no", "off", "disabled")


@dataclass(frozen=True)
class Option:
    """One setting under the engine's own name, other spellings in `aliases`. Bounds are inclusive.

    `open_low` leaves out the lower bound itself: a share of memory lies in (0, 1].
    """

    name: str
    kind: Literal["whole", "share", "switch", "choice", "tokens", "bytes", "list"]
    default: Any = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 10**12
    open_low: bool = False


@dataclass(frozen=True)
class Options:
    """Resolved settings: `values` by name, the same as `settings` with their source, and what was `ignored`."""

    values: dict[str, Any]
    settings: tuple[Setting, ...]
    ignored: tuple[str, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def asked(self, name: str) -> bool:
        """Whether the user set this one."""
        return any(setting.name == name and setting.source == "asked" for setting in self.settings)

    def warnings(self, engine: str) -> tuple[str, ...]:
        """One sentence about the settings the model of the engine doesn't use."""
        names = ", ".join(self.ignored)
        return (f"{engine} settings that don't change the cache here are ignored: {names}",) if names else ()


def read_options(table: Sequence[Option], given: Mapping[str, Any]) -> Options:
    """Read `given` (any spelling of a flag, strings or typed values) against `table`.

    Raises InputError for a value of the wrong type or out of bounds; a flag the table lacks is listed as ignored.
    """
    by_name = {flag_name(name): option for option in table for name in (option.name, *option.aliases)}
    values: dict[str, Any] = {option.name: option.default for option in table}
    asked: set[str] = set()
    ignored: list[str] = []
    for flag, value in given.items():
        option = by_name.get(flag_name(flag))
        if option is None:
            ignored.append(flag)
        elif value is not None:
            values[option.name] = _value(option, value)
            asked.add(option.name)
    settings = tuple(
        Setting(name, value, "asked" if name in asked else "the engine's default") for name, value in values.items()
    )
    return Options(values, settings, tuple(ignored))


def _value(option: Option, value: Any) -> Any:
    match option.kind:
        case "whole":
            return _whole(option, value)
        case "tokens":
            return 0 if option.low <= 0 and str(value) == "0" else parse_tokens(_plain(value), option.name)
        case "bytes":
            return 0 if option.low <= 0 and str(value) == "0" else parse_bytes(_plain(value), option.name)
        case "share":
            return _share(option, value)
        case "switch":
            return _switch(option, value)
        case "choice":
            return _choice(option, value)
        case "list":
            return _list(option, value)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else str(value)


def _whole(option: Option, value: Any) -> int:
    text = str(value).strip()
    digits = text.removeprefix("-")
    if (
        isinstance(value, bool)
        or len(text) > 20
        or not digits.isdecimal()
        or not option.low <= int(text) <= option.high
    ):
        raise InputError(
            f"{option.name}: found {show(value)}, expected a whole number from {option.low:g} to {option.high:g}"
        )
    return int(text)


def _share(option: Option, value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    fits = (option.low < number if option.open_low else option.low <= number) and number <= option.high
    if not fits:
        bracket = "(" if option.open_low else "["
        raise InputError(
            f"{option.name}: found {show(value)}, expected a number in {bracket}{option.low:g}, {option.high:g}]"
        )
    return number


def _switch(option: Option, value: Any) -> bool:
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InputError(f"{option.name}: found {show(value)}, expected true or false")


def _choice(option: Option, value: Any) -> str:
    word = str(value).strip().lower()
    if word not in option.choices:
        expected = ", ".join(option.choices)
        raise InputError(
            f"{option.name}: found {show(value)}, expected one of {expected}{did_you_mean(word, option.choices)}"
        )
    return word


def _list(option: Option, value: Any) -> tuple[float, ...]:
    items = value if isinstance(value, (list, tuple)) else str(value).replace("/", ",").split(",")
    return tuple(_share(option, item) for item in items)
