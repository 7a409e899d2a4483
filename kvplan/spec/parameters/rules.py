"""What a family's code fixes about its weights and its config.json does not say (`rules.yaml`)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kvplan.errors import InputError, did_you_mean, show
from kvplan.files import parse_yaml, read_text

RULES_PATH = Path(__file__).with_name("rules.yaml")


@dataclass(frozen=True)
class FamilyRules:
    """Traits of one family's modelling code; the defaults are Llama's. A field of the config overrides its trait."""

    known: bool = True
    counted: bool = True
    """False: the family has weights whose shapes the config doesn't give."""
    tied: bool = False
    """Embedding and head share one matrix when the config doesn't say."""
    head_bias: bool = False
    positions: int | None = None
    """Learned positions: their table has this many rows more than the context is long."""
    embedding_norm: bool = False
    final_norm: bool = True
    norm: Literal["rms", "layer", "layer_without_bias"] = "rms"
    layer_norms: int = 2
    qk_norm: Literal["none", "head", "full"] = "none"
    """One scale a head channel, shared by the heads, or one for each channel of all heads."""
    qkv_bias: bool = False
    key_bias: bool = True
    out_bias: bool = False
    attention_bias: Literal["all", "qkv"] = "all"
    """Which projections the config's `attention_bias` speaks of."""
    gate: Literal["none", "query", "head", "full"] = "none"
    """Output gate of attention: in a query projection of twice the width, one value a head, or a matrix of its own."""
    sinks: Literal["none", "all", "sliding"] = "none"
    """A learned sink logit a head, on all layers or the windowed ones."""
    mlp: Literal["gated", "plain", "none"] = "gated"
    mlp_bias: bool = False
    mlp_factor: int | None = None
    """Width of the MLP in hidden sizes, for families whose config leaves it out."""
    mlp_divisor: int = 1
    """The config names the sum of gate and up width (2) or the width itself (1)."""
    first_dense: int = 0
    """Leading layers without experts when the config doesn't say."""
    shared_experts: int = 0
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    latent_norms: int = 0
    ssm_norms: Literal["none", "gated", "inner"] = "none"
    extra: str | None = None
    """A peculiarity no trait covers: a counter of `families.py`, or a word that another counter asks for."""


@cache
def family_rules() -> dict[str, FamilyRules]:
    """Traits by `model_type`. Raises InputError naming the family and trait when the file is wrong."""
    table: Any = parse_yaml(read_text(RULES_PATH), RULES_PATH.name)
    known = {field.name for field in fields(FamilyRules)}
    result: dict[str, FamilyRules] = {}
    for family, traits in table.items():
        base = FamilyRules()
        traits = dict(traits or {})
        like = traits.pop("like", None)
        if like is not None:
            if like not in result:
                raise InputError(f"{RULES_PATH.name}: {family}.like: found {show(like)}, expected a family above it")
            base = result[like]
        for trait in traits:
            if trait not in known:
                raise InputError(
                    f"{RULES_PATH.name}: {family}: found the trait {show(trait)}, expected one of "
                    f"{', '.join(sorted(known))}{did_you_mean(trait, known)}"
                )
        result[family] = replace(base, **traits)
    return result


def rules_for(*model_types: str | None) -> FamilyRules:
    """The rules of the first known family among `model_types`; Llama's, marked unknown, when none is known."""
    table = family_rules()
    for name in model_types:
        if name is not None and name in table:
            return table[name]
    return FamilyRules(known=False)
