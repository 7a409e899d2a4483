"""Which dtype each part of the cache takes. KV, index keys, recurrent state and weights are four different choices."""

from __future__ import annotations

from kvplan.cache.formats import Format, KeyValue, Row, find_format, index_format, state_dtype
from kvplan.errors import InputError, show
from kvplan.record import record
from kvplan.spec.layers import Indexer

SIXTEEN_BIT = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}
MODEL_DTYPE_BYTES = 2


@record
class Precision:
    """The user's dtype choices, resolved: K and V formats, index and state dtypes ("auto" follows the rules below).

    Index keys under "auto": what the KV format names (16 bits beside 16-bit KV, 132 bytes beside fp8 KV). Recurrent
    matrices under "auto": fp32 unless the checkpoint names another dtype. `conv` is the dtype of convolution columns
    and token shifts, "auto" the model's: engines choose it, users don't. `skip` lists layer kinds or layer numbers
    that stay in 16 bits whatever the KV dtype.
    """

    key: Format
    value: Format
    index: str = "auto"
    state: str = "auto"
    skip: tuple[str | int, ...] = ()
    conv: str = "auto"

    @property
    def name(self) -> str:
        return self.key.name if self.key == self.value else f"{self.key.name}/{self.value.name}"

    @property
    def source(self) -> str:
        """Where the layout of K and V is documented."""
        return self.key.source if self.key == self.value else f"{self.key.source}; {self.value.source}"

    @property
    def attention(self) -> KeyValue | None:
        """K and V rows of attention layers, None where the format has none (they stay in 16 bits)."""
        if self.key == self.value:
            return self.key.attention
        assert self.key.attention is not None and self.value.attention is not None
        return KeyValue(self.key.attention.key, self.value.attention.value)

    def index_row(self, indexer: Indexer) -> tuple[str, Row]:
        """The name and row of the layer's index keys; a pinned format beats the user's choice."""
        if indexer.key_format is not None:
            return index_format(indexer.key_format)
        if self.index != "auto":
            return index_format(self.index)
        if self.key.index == "own":
            assert self.key.attention is not None
            return self.key.name, self.key.attention.key
        return index_format(self.key.index)


def resolve_precision(
    kv_cache_dtype: str = "auto",
    index_dtype: str = "auto",
    state: str = "auto",
    *,
    model_dtype: str = "bfloat16",
    value_dtype: str | None = None,
    skip: tuple[str | int, ...] = (),
) -> Precision:
    """Resolve dtype names. "auto" KV is 16-bit in the model's dtype (a float32 upload is served in 16 bits).

    `value_dtype` gives V a format of its own, as llama.cpp's K and V types; both must then be plain or block formats.
    Raises InputError for an unknown name or a pair that can't be mixed.
    """
    asked = {"--kv-cache-dtype": kv_cache_dtype, "--index-dtype": index_dtype, "--state-dtype": state}
    for field, name in asked.items():
        if not isinstance(name, str):
            raise InputError(f"{field}: found {show(name)}, expected the name of a dtype")
    if value_dtype is not None and not isinstance(value_dtype, str):
        raise InputError(f"--value-cache-dtype: found {show(value_dtype)}, expected the name of a dtype")
    for entry in skip:
        if isinstance(entry, bool) or not isinstance(entry, str | int):
            raise InputError(
                f"--kv-cache-dtype-skip-layers: found {show(entry)}, expected layer numbers or a layer kind"
            )
    default = SIXTEEN_BIT[model_dtype]
    key = find_format(default if kv_cache_dtype.strip().lower() == "auto" else kv_cache_dtype)
    value = key if value_dtype is None else find_format(value_dtype, "--value-cache-dtype")
    if key != value:
        for fmt, field in ((key, "--kv-cache-dtype"), (value, "--value-cache-dtype")):
            if fmt.attention is None or fmt.attention.slot_align != 1:
                raise InputError(
                    f"{field}: found {fmt.name}, which stores K and V together, expected a dtype that V can differ from"
                )
    index = index_dtype.strip().lower()
    index = "auto" if index == "auto" else index_format(index)[0]
    state = state.strip().lower()
    return Precision(key, value, index, "auto" if state == "auto" else state_dtype(state), skip)
