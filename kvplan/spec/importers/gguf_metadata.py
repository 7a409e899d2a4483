"""The metadata of a GGUF file: strict getters under the architecture's prefix, and the table of known architectures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from kvplan.errors import InputError, KvplanError, UnsupportedArchitectureError, show
from kvplan.files import read_yaml
from kvplan.spec.layers import FORBID_EXTRA

LIMIT = 10**8


@dataclass(frozen=True)
class GgufFamily:
    """What an engine knows of an architecture beyond its file (see gguf_architectures.yaml)."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    names: tuple[str, ...]
    #: one layer in `period` keeps everything, the others a window; None where only a list in the file may say so
    period: int | None = None
    full_first: bool = False
    default_window: int | None = None
    chunked: bool = False
    #: layers from the start that own a cache, where the file doesn't count the sharing ones
    kv_layers: int | None = None
    recurrent: Literal["mamba1", "mamba2", "gated_delta", "kda", "lightning", "short_conv", "rwkv"] | None = None
    where: Literal["all", "no_kv_heads", "no_kv_heads_no_ffn", "interval", "beside"] | None = None
    interval: int | None = None
    #: which layers own index keys: all, those the file lists, GLM 5's rule, or those after the dense lead
    indexer: Literal["all", "listed", "glm", "after_dense"] | None = None
    index_key_format: Literal["fp8"] | None = None
    compressed: bool = False


@cache
def families() -> dict[str, GgufFamily]:
    """Every known architecture by its `general.architecture`."""
    from pydantic import TypeAdapter, ValidationError

    path = Path(__file__).with_name("gguf_architectures.yaml")
    try:
        listed = TypeAdapter(tuple[GgufFamily, ...]).validate_python(read_yaml(path)["families"])
    except ValidationError as error:
        raise KvplanError(f"{path.name}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from None
    return {name: family for family in listed for name in family.names}


class Metadata:
    """The keys of one file. `label` is what errors call it; `{arch}.` is put before every key asked for."""

    def __init__(self, values: dict[str, Any], label: str) -> None:
        self.values, self.label = values, label
        arch = values.get("general.architecture")
        if not isinstance(arch, str) or not arch:
            raise InputError(f"{label}: general.architecture: found {show(arch)}, expected an architecture's name")
        self.arch = arch

    def get(self, key: str) -> Any:
        return self.values.get(f"{self.arch}.{key}")

    def has(self, *keys: str) -> bool:
        return all(self.get(key) is not None for key in keys)

    def bad(self, key: str, value: object, expected: str) -> InputError:
        return InputError(f"{self.label}: {self.arch}.{key}: found {show(value)}, expected {expected}")

    def unsupported(self, message: str) -> UnsupportedArchitectureError:
        prefix = f"{self.arch}."
        keys = [key.removeprefix(prefix) for key in self.values if key.startswith(prefix)]
        seen = ", ".join(sorted(keys)) or "none"
        return UnsupportedArchitectureError(
            f"{self.label}: GGUF architecture {show(self.arch)}: {message}; keys seen: "
            f"{seen if len(seen) <= 600 else seen[:597] + '...'}"
        )

    def whole(self, key: str, low: int = 1, high: int = LIMIT) -> int | None:
        """A whole number within bounds, None where the key is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not _is_whole(value, low, high):
            raise self.bad(key, value, f"a whole number from {low:,} to {high:,}")
        return int(value)

    def need(self, key: str, low: int = 1, high: int = LIMIT) -> int:
        """As `whole`, but an absent key is refused."""
        value = self.whole(key, low, high)
        if value is None:
            raise self.unsupported(f"{self.arch}.{key} is missing")
        return value

    def per_layer(
        self, key: str, layers: int, drafts: int, default: list[int] | None = None, spare: int = 0
    ) -> list[int]:
        """One whole number (0 allowed) for each of `layers` + `drafts`, from one number for all or from an array.

        An array may leave the draft layers out (they get its largest value) or carry up to `spare` more entries.
        """
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.unsupported(f"{self.arch}.{key} is missing")
            return default
        total = layers + drafts
        if not isinstance(value, list):
            if not _is_whole(value, 0, LIMIT):
                raise self.bad(key, value, f"a whole number from 0 to {LIMIT:,} or an array of them")
            return [int(value)] * total
        wrong = next((item for item in value if not _is_whole(item, 0, LIMIT)), None)
        if wrong is not None:
            raise self.bad(key, wrong, f"an array of whole numbers from 0 to {LIMIT:,}")
        self._check_length(key, len(value), layers, total + spare)
        return [*value[:total], *[max(value)] * (total - len(value))]

    def flags(self, key: str, layers: int, drafts: int) -> list[bool] | None:
        """One flag a layer (drafts left out) from an array of booleans or of 0 and 1; None where the key is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(item in (0, 1) for item in value):
            raise self.bad(key, value, "an array of booleans, one a layer")
        self._check_length(key, len(value), layers, layers + drafts)
        return [bool(item) for item in value[:layers]]

    def _check_length(self, key: str, found: int, low: int, high: int) -> None:
        if not low <= found <= high:
            raise self.unsupported(f"{self.arch}.{key} has {found} entries, expected one for each of {low} layers")


def _is_whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
