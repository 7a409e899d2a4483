"""config.json to ModelSpec: find the text model, place its layers, name its blocks, and say what was assumed.

Fails closed. An architecture nobody listed, a window without its layers, a list of the wrong length or a width that
doesn't divide is refused rather than guessed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvplan.errors import InputError, UnsupportedArchitectureError, did_you_mean, printable, show
from kvplan.files import read_json_object
from kvplan.spec.importers import mixers, quantization, sharing, special
from kvplan.spec.importers.catalog import Family, catalog, families, find
from kvplan.spec.importers.counts import draft_count, layer_count
from kvplan.spec.importers.fields import CONTEXT, WIDTH, Fields, is_whole
from kvplan.spec.importers.layout import layer_kinds
from kvplan.spec.importers.naming import compact, name_blocks
from kvplan.spec.layers import (
    Layer,
    Parallel,
    SharedCache,
)
from kvplan.spec.model import MAX_NAME, Confidence, ModelDtype, ModelSpec, Provenance, model_name
from kvplan.spec.parameters import count_parameters, parameter_assumptions

#: where wrappers keep the text model, in the order they are tried
TEXT_BLOCKS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config", "decoder")
_DTYPES: dict[str, ModelDtype] = {
    "bfloat16": "bfloat16", "bf16": "bfloat16", "float16": "float16", "half": "float16", "fp16": "float16",
    "float32": "float32", "float": "float32", "fp32": "float32",
}  # fmt: skip
DENSE = Family(types=())
#: what a file without any architecture may say and still be plain attention: nothing here hints at another layout
_PLAIN_FIELDS = frozenset({
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias",
    "mlp_bias", "tie_word_embeddings", "torch_dtype", "dtype", "initializer_range", "use_cache", "bos_token_id",
    "eos_token_id", "pad_token_id", "transformers_version", "attention_dropout",
})  # fmt: skip


def load_config(path: Path, *, assume_dense: bool = False) -> ModelSpec:
    """Import a config.json, or a folder that holds one and perhaps hf_quant_config.json.

    Raises InputError where a file can't be read or has values of the wrong type, UnsupportedArchitectureError where
    the layout can't be derived.
    """
    folder = path if path.is_dir() else path.parent
    file = path / "config.json" if path.is_dir() else path
    config = read_json_object(file)
    second_name = "hf_quant_config.json" if file.name == "config.json" else f"{file.stem}.hf_quant_config.json"
    second = folder / second_name
    name = config.get("_name_or_path")
    if not isinstance(name, str) or not name.strip("./"):
        name = folder.resolve().name if file.name == "config.json" else file.stem
    return import_config(
        config,
        name=name.rstrip("/").rsplit("/", 1)[-1] or "config",
        quant_config=read_json_object(second) if second.is_file() else None,
        assume_dense=assume_dense,
    )


def import_config(
    config: dict[str, Any], *, name: str, quant_config: dict[str, Any] | None = None, assume_dense: bool = False
) -> ModelSpec:
    """Derive a ModelSpec from the fields of a config.json.

    `name`, made printable, becomes the spec's id and the file's name in errors. `assume_dense` takes every layer of
    an unknown architecture, or of one whose windows can't be placed, as full attention and says so in the spec.

    Raises InputError for values of the wrong type or range, UnsupportedArchitectureError for a layout that the
    fields and the family's published class don't decide.
    """
    name = model_name(name) or "config"
    if not isinstance(config, dict):
        raise InputError(f"{name}: found a {type(config).__name__} at the top, expected an object")
    fields, wrapper, dense = _text_fields(config, name, assume_dense)
    sequence, drafts, blocks = _stack(fields, dense, assume_dense)
    dtype = _dtype(fields, wrapper)
    block = wrapper.values.get("quantization_config") or fields.values.get("quantization_config")
    if block is not None and not isinstance(block, dict):
        raise InputError(f"{name}: quantization_config: found {show(block)}, expected an object")
    spec = ModelSpec(
        id=name,
        model_type=printable(
            str(fields.values.get("model_type") or wrapper.values.get("model_type") or "unknown"), MAX_NAME
        ),
        dtype=dtype,
        blocks=blocks,
        layers=compact(sequence),
        provenance=Provenance("config.json", _confidence(fields)),
        architecture=_architecture(fields, wrapper),
        max_context=_max_context(fields),
        hidden_size=fields.whole(*WIDTH),
        vocab_size=fields.whole("vocab_size", "padded_vocab_size") or wrapper.whole("vocab_size"),
        meta_tokens=fields.whole("num_memory_tokens", "num_meta_tokens", low=0) or 0,
        tied_embeddings=_tied(fields, wrapper),
        draft_layers=compact(drafts),
        quantization=quantization.weights(block, quant_config, wrapper.values.get("expert_dtype"), name),
        kv_quantization=quantization.kv_cache(block, quant_config, "config.json"),
        assumptions=tuple(fields.assumptions),
    )
    counts = count_parameters(config, spec)
    words = parameter_assumptions(config, spec) if counts is not None else ()
    return replace(spec, parameters=counts, assumptions=(*spec.assumptions, *words))


def _confidence(fields: Fields) -> Confidence:
    """How far the file itself carries the layout."""
    if any("on request" in sentence for sentence in fields.assumptions):
        return "assumed"
    if fields.family is DENSE:
        return "unverified"
    filled = any(sentence.startswith("The text block leaves out") for sentence in fields.assumptions)
    return "class defaults" if filled else "verbatim"


def _text_scopes(config: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """The root and the text blocks nested in it, outermost first. Scopes are never mixed for geometry."""
    scopes = [config]
    for _ in range(3):
        inner = next((key for key in TEXT_BLOCKS if scopes[-1].get(key) is not None), None)
        if inner is None:
            break
        value = scopes[-1][inner]
        if not isinstance(value, dict) and inner != TEXT_BLOCKS[0]:
            break
        if not isinstance(value, dict):
            raise InputError(f"{name}: {inner}: found {show(value)}, expected an object")
        if not value:
            break
        scopes.append(value)
    return scopes


def _text_fields(config: dict[str, Any], name: str, assume_dense: bool) -> tuple[Fields, Fields, bool]:
    """The text model's fields with its family, the root's fields, and whether the family is unknown (taken dense)."""
    scopes = _text_scopes(config, name)
    family, text = None, scopes[-1]
    for scope in reversed(scopes):
        family = find(scope.get("model_type"), scope.get("architectures"))
        if family is not None:
            break
    seen = ", ".join(
        f"{key} {show(scope[key])}" for scope in scopes for key in ("model_type", "architectures") if scope.get(key)
    )
    seen = seen or "no model_type and no architectures"
    unnamed = family is None and len(scopes) == 1 and _is_plain(config)
    if family is None and not unnamed and not assume_dense:
        model_type = text.get("model_type") or config.get("model_type")
        hint = did_you_mean(model_type, families()) if isinstance(model_type, str) else ""
        raise UnsupportedArchitectureError(
            f"{name}: {seen}: the architecture isn't known{hint}; --assume dense takes every layer as full attention"
        )
    dense = family is None
    fields = Fields(dict(text), family or DENSE, name, seen)
    if config.get("mtp_config") is not None:  # Inkling keeps its draft modules beside the text block
        fields.values.setdefault("mtp_config", config["mtp_config"])
    if len(scopes) > 1:
        _fill_nested(fields)
    if unnamed:
        fields.assume("The file names no architecture: its fields are all those of plain attention on every layer.")
    elif dense:
        fields.assume("The architecture isn't known: on request every layer is taken as full attention.")
    return fields, fields.with_values(config), dense


def _is_plain(config: dict[str, Any]) -> bool:
    """Whether a file without model_type and architectures has nothing but the fields of plain attention."""
    needed = {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"}
    return needed <= config.keys() <= _PLAIN_FIELDS


def _fill_nested(fields: Fields) -> None:
    """A wrapper's text block leaves out what equals its class's default: fill it in and say so."""
    defaults = catalog().nested_defaults.get(str(fields.values.get("model_type")), {})
    filled = {key: value for key, value in defaults.items() if key not in fields.values}
    fields.values |= filled
    if filled:
        listed = ", ".join(f"{key} {value}" for key, value in filled.items())
        fields.assume(f"The text block leaves out {listed}: the class defaults are used.")


def _stack(fields: Fields, dense: bool, assume_dense: bool) -> tuple[list[str], list[str], dict[str, Layer]]:
    """The block name of each layer and of each draft layer, and the blocks."""
    layers = layer_count(fields)
    built = None if dense else special.stack(fields, layers)
    if built is None:
        try:
            kinds = ["full"] * layers if dense else layer_kinds(fields, layers, assume_dense)
        except UnsupportedArchitectureError:
            if not assume_dense:
                raise
            fields.assume("Its windows can't be placed: on request every layer is taken as full attention.")
            kinds = ["full"] * layers
        own: list[Layer] = [mixers.build(fields, kind, index, layers) for index, kind in enumerate(kinds)]
        built = own, [None] * layers if dense else sharing.owners(fields, kinds)
    own, owners = built
    for index, owner in enumerate(owners):
        selector = getattr(own[index], "indexer", None)
        if owner is not None and selector is not None and selector.owns_keys:
            raise fields.unsupported(f"layer {index} reads layer {owner}'s cache but keeps index keys of its own")
    if fields.family.loop:
        own = special.looped(fields, own)
        owners = [None] * len(own)
    if fields.family.blocks_per_layer > 1:
        own = [layer for layer in own for _ in range(fields.family.blocks_per_layer)]
        owners = [None] * len(own)
    draft = [] if dense else special.drafts(fields, own, layers, draft_count(fields))
    return _named(own, owners, draft)


def _named(
    own: list[Layer], owners: list[int | None], draft: list[Layer]
) -> tuple[list[str], list[str], dict[str, Layer]]:
    """Names for owning blocks first, then for the blocks that read them."""
    owning = [layer for layer, owner in zip(own, owners, strict=True) if owner is None]
    names = name_blocks(list(dict.fromkeys(owning)))
    targets: dict[str, set[int]] = {}
    for owner in owners:
        if owner is not None:
            targets.setdefault(names[own[owner]], set()).add(owner)
    shared: dict[int, Layer] = {}
    for index, owner in enumerate(owners):
        if owner is None:
            continue
        block = names[own[owner]]
        reader = SharedCache(block, owner if len(targets[block]) == 1 else None)
        layer = own[index]
        shared[index] = Parallel((reader, *layer.branches[1:])) if isinstance(layer, Parallel) else reader
    names |= name_blocks(list(dict.fromkeys(shared.values())), tuple(names.values()))
    new = [layer for layer in dict.fromkeys(draft) if layer not in names]
    names |= {
        layer: f"draft_{name}" for layer, name in name_blocks(new).items()
    }  # a draft layer's geometry is nearly always one of the stack's
    sequence = [names[shared.get(index, layer)] for index, layer in enumerate(own)]
    used = {*sequence, *(names[layer] for layer in draft)}
    blocks = {block: layer for layer, block in names.items() if block in used}
    return sequence, [names[layer] for layer in draft], blocks


def _architecture(fields: Fields, wrapper: Fields) -> str | None:
    for scope in (wrapper, fields):
        names = scope.values.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return printable(names[0], MAX_NAME)
    return None


def _dtype(fields: Fields, wrapper: Fields) -> ModelDtype:
    for scope in (fields, wrapper):
        for name in ("dtype", "torch_dtype"):
            value = scope.values.get(name)
            if value is None:
                continue
            if not isinstance(value, str):
                raise scope.bad(name, value, "a dtype such as bfloat16")
            dtype = _DTYPES.get(value.removeprefix("torch."))
            if dtype == "float32":
                fields.assume(f"{name} is float32: engines usually serve such uploads in 16 bits.")
            if dtype is not None:
                return dtype
            fields.assume(f"{name} is {show(value)}: bfloat16 is assumed.")
            return "bfloat16"
    fields.assume("dtype is absent: bfloat16 is assumed.")
    return "bfloat16"


def _tied(fields: Fields, wrapper: Fields) -> bool | None:
    for scope in (fields, wrapper):
        for name in ("tie_word_embeddings", "tie_embedding", "share_input_output_layers"):
            value = scope.values.get(name)
            if value is not None and not isinstance(value, bool):
                raise scope.bad(name, value, "true or false")
            if value is not None:
                return bool(value)
    return fields.family.tied


def _max_context(fields: Fields) -> int | None:
    """The longest context the file declares, the family's rule first: which field, and whether scaling extends it."""
    names = fields.family.context or CONTEXT
    found = [value for name in names if (value := _length(fields, name)) is not None]
    if not found:
        return None
    longest = max(found) if fields.family.context else found[0]
    if not fields.family.rope_extends:
        return longest
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.values.get(name)
        if not isinstance(scaling, dict) or (scaling.get("rope_type") or scaling.get("type")) != "yarn":
            continue
        factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings")
        if isinstance(factor, int | float) and 1 <= factor <= 10**6 and is_whole(original):
            longest = max(longest, int(factor * original))
    return longest


def _length(fields: Fields, name: str) -> int | None:
    """A context length; the tokenizer's 10^30 for "no limit" counts as none."""
    value = fields.get(name)
    if name == "model_max_length" and isinstance(value, int | float) and value > 10**12:
        return None
    return fields.whole(name, high=10**12)
