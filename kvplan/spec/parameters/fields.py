"""Reading the figures of a config.json that decide how many weights a model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvplan.errors import InputError, show
from kvplan.spec.parameters.rules import FamilyRules

TEXT_SCOPES = ("text_config", "llm_config", "language_config")


LARGEST = 10**9


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


class UnknownSizeError(Exception):
    """A field that decides the count is missing, or given layer by layer; the count is then unknown, not guessed."""


def text_scope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the text model: a nested text config where there is one, else the root."""
    thinker = config.get("thinker_config")
    if isinstance(thinker, Mapping):
        return text_scope(thinker)
    for scope in TEXT_SCOPES:
        nested = config.get(scope)
        if isinstance(nested, Mapping) and nested:
            return nested
    return config


@dataclass(frozen=True)
class Fields:
    """A config's text scope with its family's rules. Names are tried in order, the first present one counts."""

    config: Mapping[str, Any]
    root: Mapping[str, Any]
    rules: FamilyRules
    label: str = "config"

    def get(self, *names: str) -> Any:
        """The first field that is present and not null; `a.b` looks inside the object `a`."""
        return self._named(*names)[1]

    def _named(self, *names: str) -> tuple[str, Any]:
        for name in names:
            value: Any = self.config
            for key in name.split("."):
                value = value.get(key) if isinstance(value, Mapping) else None
            if value is not None:
                return name, value
        return names[0], None

    def find(self, *names: str) -> int | None:
        """A whole number from 0 on, or None when no field of these names is present.

        Raises InputError for a value of another type, UnknownSizeError for a list with an entry a layer and for -1,
        which marks a field as unset.
        """
        name, value = self._named(*names)
        if value is None:
            return None
        if value == -1 or (isinstance(value, list) and value and all(map(_is_size, value))):
            raise UnknownSizeError(name)
        if not _is_size(value):
            raise self._bad(name, value)
        return int(value)

    def _bad(self, name: str, value: object) -> InputError:
        return InputError(f"{self.label}: {name}: found {show(value)}, expected a whole number from 0 to {LARGEST:,}")

    def need(self, *names: str) -> int:
        """A positive whole number. Raises UnknownSizeError when it is missing."""
        value = self.find(*names)
        if not value:
            raise UnknownSizeError(names[0])
        return value

    def flag(self, *names: str) -> bool | None:
        """A boolean field, or None when it is missing."""
        value = self.get(*names)
        return value if isinstance(value, bool) else None

    def items(self, name: str) -> list[Any] | None:
        """A list field, or None when it is missing or no list."""
        value = self.get(name)
        return value if isinstance(value, list) else None

    def at(self, index: int, *names: str) -> int | None:
        """A whole number that may be given once or as a list with one entry a layer."""
        name, value = self._named(*names)
        if not isinstance(value, list):
            return self.find(*names)
        entry = value[index] if 0 <= index < len(value) else None
        if entry is None or entry == -1:
            raise UnknownSizeError(name)
        if not _is_size(entry):
            raise self._bad(name, entry)
        return int(entry)

    @property
    def hidden(self) -> int:
        return self.need("hidden_size", "n_embd", "d_model", "model_dim", "n_embed")

    @property
    def norm_width(self) -> int:
        """Weights of one normalisation over the hidden width."""
        return self.norm(self.hidden)

    def norm(self, width: int) -> int:
        """Weights of one normalisation over `width` channels: LayerNorm has a bias besides, RMSNorm has none."""
        biased = self.rules.norm == "layer" and self.flag("no_bias") is not True
        return 2 * width if biased else width


def linear(inputs: int, outputs: int, bias: bool = False) -> int:
    """Weights of one linear layer."""
    return inputs * outputs + (outputs if bias else 0)
