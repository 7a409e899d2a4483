"""The fields of a config.json: typed strict getters, and section by section the names one quantity goes by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from kvplan.errors import InputError, UnsupportedArchitectureError, show
from kvplan.spec.importers.catalog import Family
from kvplan.spec.model import MAX_LAYERS

LIMIT = 10**8

LAYERS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers", "num_blocks",
    "decoder_layers", "num_decoder_layers",
)  # fmt: skip
DECODER_LAYERS = (
    "decoder_layers", "num_decoder_layers", "decoder_num_hidden_layers", "num_layers", "num_hidden_layers",
)  # fmt: skip
WIDTH = (
    "hidden_size", "n_embd", "d_model", "n_embed", "model_dim", "hidden_dim", "embedding_dim", "decoder_hidden_size",
)  # fmt: skip
QUERY_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads", "num_attn_heads",
    "attention_heads",
)  # fmt: skip
DECODER_HEADS = (
    "decoder_attention_heads", "num_decoder_attention_heads", "decoder_num_attention_heads", "num_heads",
    "num_attention_heads",
)  # fmt: skip
KV_HEADS = (
    "num_key_value_heads_per_layer",
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_attention_groups", "multi_query_group_num",
    "num_query_groups", "kv_n_heads", "decoder_num_key_value_heads",
)  # fmt: skip
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "hidden_size_per_head", "kq_head_dim")
CONTEXT = (
    "max_position_embeddings", "max_position_embedding", "n_positions", "n_ctx", "seq_length", "max_seq_len",
    "max_sequence_length", "model_max_length", "max_context_length", "max_target_positions",
)  # fmt: skip
WINDOW = (
    "sliding_window",
    "sliding_window_size",
    "attention_window_size",
    "window_size",
    "local_attention_window_size",
)
STATE_DTYPE = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype", "inference_state_dtype")
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers", "_num_mtp_layers")

#: a value that stands for "not set" where these fields carry it
UNSET = {
    "sliding_window": -1,
    "sliding_window_size": -1,
    "kq_head_dim": -1,
    "v_head_dim": -1,
    "attn_hidden_size": -1,
    "kv_reuse_every_i_layer": -1,
}


def is_whole(value: object, low: int = 1, high: int = LIMIT) -> TypeGuard[int]:
    """Whether a value is a whole number within bounds; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


@dataclass
class Fields:
    """One scope of a config: the text model's fields, what the family says of it, and the assumptions made so far.

    `label` is what errors call the file, `seen` the model_type and class they name.
    """

    values: dict[str, Any]
    family: Family
    label: str
    seen: str
    assumptions: list[str] = field(default_factory=list)

    def with_values(self, values: dict[str, Any]) -> Fields:
        return Fields(values, self.family, self.label, self.seen, self.assumptions)

    def assume(self, sentence: str) -> None:
        if sentence not in self.assumptions:
            self.assumptions.append(sentence)

    def bad(self, name: str, value: object, expected: str) -> InputError:
        return InputError(f"{self.label}: {name}: found {show(value)}, expected {expected}")

    def unsupported(self, message: str) -> UnsupportedArchitectureError:
        return UnsupportedArchitectureError(f"{self.label}: {self.seen}: {message}")

    def same_length(self, name: str, found: int, layers: int) -> None:
        """Refuse a list that hasn't exactly one entry a layer."""
        if found != layers:
            raise self.unsupported(f"{name} has {found} entries, expected one for each of {layers} layers")

    def get(self, name: str) -> Any:
        """The raw value; None where the field is absent, null or carries its own mark for unset."""
        value = self.values.get(name)
        return None if name in UNSET and value == UNSET[name] else value

    def present(self, names: Iterable[str]) -> str | None:
        """The first of `names` that has a value."""
        return next((name for name in names if self.get(name) is not None), None)

    def whole(self, *names: str, low: int = 1, high: int = LIMIT) -> int | None:
        """The first present of `names` as a whole number within bounds; None where all are absent or null."""
        name = self.present(names)
        if name is None:
            return None
        value = self.get(name)
        if not is_whole(value, low, high):
            raise self.bad(name, value, f"a whole number from {low:,} to {high:,}")
        return int(value)

    def need(self, what: str, *names: str, low: int = 1, high: int = LIMIT) -> int:
        """As `whole`, but a class default listed for the family steps in, and nothing at all is refused."""
        value = self.whole(*names, low=low, high=high)
        if value is not None:
            return value
        for name in names:
            if name in self.family.defaults:
                self.assume(f"{name} is absent: the class default of {self.family.defaults[name]} is used.")
                return int(self.family.defaults[name])
        raise self.unsupported(f"{what} is missing, expected one of {', '.join(names[:4])}")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self.bad(name, value, "a string")
        return value

    def block(self, name: str) -> Fields | None:
        """A nested object as a scope of its own."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(name, value, "an object")
        inner = self.with_values(value)
        inner.label = f"{self.label}: {name}"
        return inner

    def items(self, name: str) -> list[Any] | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.bad(name, value, "a list")
        if len(value) > 2 * MAX_LAYERS:
            raise self.bad(name, f"{len(value):,} entries", f"at most {2 * MAX_LAYERS:,}")
        return value

    def wholes(self, name: str, low: int = 0, high: int = LIMIT) -> list[int] | None:
        value = self.items(name)
        for item in value or ():
            if not is_whole(item, low, high):
                raise self.bad(name, item, f"a list of whole numbers from {low:,} to {high:,}")
        return value

    def indices(self, name: str, layers: int) -> set[int] | None:
        """A list of zero-based layer indices."""
        value = self.wholes(name)
        outside = next((index for index in value or () if index >= layers), None)
        if outside is not None:
            raise self.unsupported(
                f"{name} names layer {outside}, but the model has {layers} layers (0 to {layers - 1})"
            )
        return None if value is None else set(value)

    def per_layer(self, names: Iterable[str], layer: int, layers: int, low: int = 1) -> int | None:
        """A whole number, or this layer's entry of a list with one entry a layer."""
        name = self.present(names)
        if name is None or not isinstance(self.get(name), list):
            return self.whole(*([name] if name else []), low=low)
        value = self.wholes(name, low=low) or []
        self.same_length(name, len(value), layers)
        return value[layer]
