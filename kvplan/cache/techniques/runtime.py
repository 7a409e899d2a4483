"""Runtime techniques as one object, from the options of a command line or a YAML `techniques:` list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvplan.cache.precision import Precision, resolve_precision
from kvplan.cache.techniques.eviction import Eviction, parse_evict
from kvplan.cache.techniques.offload import Offload, parse_offload
from kvplan.cache.techniques.sparse_reads import Quest, parse_sparse_read
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.spec.model import ModelSpec
from kvplan.units import parse_tokens

MAX_BATCH = 10**9
MAX_BLOCK = 1 << 20
DEFAULT_BLOCK = 16
ARCHITECTURAL = ("kv-heads", "cla", "mlkv", "owners", "yoco", "window", "mla", "attention-every", "csa", "dsa")


@record
class Techniques:
    """What a runtime changes. None or empty leaves a term alone.

    `block_size` pages the cache; a shared prefix needs pages and takes blocks of 16 where none are asked.
    """

    kv_cache_dtype: str = "auto"
    skip_layers: tuple[str | int, ...] = ()
    evict: Eviction | None = None
    sparse_read: Quest | None = None
    block_size: int | None = None
    share_prefix: int | None = None
    batch: int = 1
    offload: Offload | None = None

    def precision(self, spec: ModelSpec, index_dtype: str = "auto", state_dtype: str = "auto") -> Precision:
        """The dtypes of the cache under these techniques."""
        return resolve_precision(
            self.kv_cache_dtype, index_dtype, state_dtype, model_dtype=spec.dtype, skip=self.skip_layers
        )

    @property
    def block(self) -> int | None:
        """The block size in force, None where the cache is not paged."""
        return DEFAULT_BLOCK if self.block_size is None and self.share_prefix is not None else self.block_size


def parse_skip_layers(text: str | int | list[Any]) -> tuple[str | int, ...]:
    """Parse `sliding_window` or `0,1,30,31`: layer kinds, blocks of the spec, or layer numbers."""
    items = text if isinstance(text, list) else str(text).split(",")
    found: list[str | int] = []
    for item in items:
        word = str(item).strip()
        if not word or len(word) > 60 or isinstance(item, (dict, list, bool)):
            raise InputError(
                f"--kv-cache-dtype-skip-layers: found {show(item)}, expected layer numbers or a layer kind such as "
                "sliding_window"
            )
        found.append(int(word) if word.isdecimal() and len(word) <= 6 else word)
    return tuple(found)


def parse_techniques(
    *,
    kv_cache_dtype: str | None = None,
    skip_layers: str | int | list[Any] | None = None,
    evict: str | None = None,
    sparse_read: str | None = None,
    block_size: str | int | None = None,
    share_prefix: str | int | None = None,
    batch: str | int = 1,
    offload: str | None = None,
) -> Techniques:
    """Build Techniques from option strings as people type them. Raises InputError naming the option."""
    return Techniques(
        kv_cache_dtype=_text(kv_cache_dtype, "--kv-cache-dtype") or "auto",
        skip_layers=() if skip_layers is None else parse_skip_layers(skip_layers),
        evict=_maybe(evict, "--evict", parse_evict),
        sparse_read=_maybe(sparse_read, "--sparse-read", parse_sparse_read),
        block_size=None if block_size is None else _whole(block_size, "--block-size", MAX_BLOCK),
        share_prefix=None if share_prefix is None else parse_tokens(share_prefix, "--share-prefix"),
        batch=_whole(batch, "--batch", MAX_BATCH),
        offload=_maybe(offload, "--offload", parse_offload),
    )


def techniques_from_list(items: Any, name: str = "techniques") -> Techniques:
    """Build Techniques from a YAML list of single options: `- evict: snapkv:2048`, `- kv-cache-dtype: kivi2`.

    An architectural technique among them is refused with the what-if that shows it.
    """
    if not isinstance(items, list) or not all(isinstance(item, Mapping) and len(item) == 1 for item in items):
        raise InputError(f"{name}: found {show(items)}, expected a list of single options such as 'evict: snapkv:2048'")
    options: dict[str, Any] = {}
    for item in items:
        ((key, value),) = item.items()
        option = str(key).lstrip("-").replace("_", "-").lower()
        if option in ARCHITECTURAL:
            raise InputError(
                f"{name}: found {option}, which is trained into a checkpoint and no runtime flag; expected a what-if: "
                f"--what-if {option}={value}"
            )
        argument = _ARGUMENTS.get(option)
        if argument is None:
            raise InputError(
                f"{name}: found {show(key)}, expected one of {', '.join(_ARGUMENTS)}{did_you_mean(option, _ARGUMENTS)}"
            )
        if argument in options:
            raise InputError(f"{name}: found {option} twice, expected it at most once")
        options[argument] = value
    return parse_techniques(**options)


_ARGUMENTS = {
    "kv-cache-dtype": "kv_cache_dtype",
    "kv-cache-dtype-skip-layers": "skip_layers",
    "evict": "evict",
    "sparse-read": "sparse_read",
    "block-size": "block_size",
    "share-prefix": "share_prefix",
    "batch": "batch",
    "offload": "offload",
}


def _text(value: Any, field: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InputError(f"{field}: found {show(value)}, expected text")
    return value


def _maybe(value: Any, field: str, parse: Callable[[str], Any]) -> Any:
    text = _text(value, field)
    return None if text is None else parse(text)


def _whole(value: str | int, field: str, high: int) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or len(text) > 12 or not 1 <= int(text) <= high:
        raise InputError(f"{field}: found {show(value)}, expected a whole number from 1 to {high}")
    return int(text)
