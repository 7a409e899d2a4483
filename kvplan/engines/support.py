"""Which engine has which technique, layer kind and cache dtype, and the refusal that names those that have it.

Techniques come from the matrix of `kvplan.cache.techniques`, layer kinds and dtypes from `support.yaml` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from kvplan.cache.formats import find_format
from kvplan.engines.registry import canonical_engine, engine_names
from kvplan.engines.versions import load_rules
from kvplan.errors import InputError, did_you_mean, show
from kvplan.spec.layers import LAYER_BY_KIND
from kvplan.spec.model import ModelSpec, branches

Level = Literal["Y", "P", "N", "-"]
_ORDER = {"Y": 0, "P": 1, "N": 2, "-": 3}
_LEVELS: dict[str, Level] = {"yes": "Y", "partly": "P", "no": "N"}
#: the layer kinds a technique is about; it doesn't apply to the others
_KINDS_OF: dict[str, tuple[str, ...]] = {
    "window": ("sliding_window", "chunked_attention"),
    "mla": ("latent_attention",),
    "csa": ("compressed_sparse",),
    "cla": ("shared_cache",),
    "hybrid": ("mamba1", "mamba2", "gated_delta", "kda", "lightning", "rg_lru", "short_conv", "rwkv", "mlstm"),
    "gqa": ("full_attention", "sliding_window", "chunked_attention", "cross_attention"),
    "dsa": ("latent_attention", "full_attention", "compressed_sparse"),
}


@dataclass(frozen=True)
class Support:
    """Y yes, P partly, N not found, - not applicable; `note` says how, `source` where it was read."""

    level: Level
    note: str = ""
    source: str = ""

    def __bool__(self) -> bool:
        return self.level in ("Y", "P")


def supports(engine: str, technique: str, layer_kind: str | None = None) -> Support:
    """Whether `engine` has `technique` (a name or alias of the twelve, "dsa" or "kivi"), on layers of one kind.

    With a layer kind the answer is the lesser of both; "-" where the technique isn't about that kind. Raises InputError
    for an unknown engine, technique or layer kind.
    """
    name = canonical_engine(engine)
    found = _technique(name, technique)
    if layer_kind is None:
        return found
    about = _KINDS_OF.get(_canonical_technique(technique))
    if about is not None and layer_kind not in about:
        return Support("-", f"{technique} is not about {layer_kind} layers", found.source)
    kind = supports_kind(name, layer_kind)
    return kind if _ORDER[kind.level] > _ORDER[found.level] else found


def supports_kind(engine: str, layer_kind: str) -> Support:
    """Whether `engine` runs layers of one kind. Raises InputError for an unknown engine or kind."""
    name, data = canonical_engine(engine), _data()
    if layer_kind not in LAYER_BY_KIND or layer_kind == "parallel":
        kinds = [kind for kind in LAYER_BY_KIND if kind != "parallel"]
        raise InputError(
            f"layer kind: found {show(layer_kind)}, expected one of {', '.join(kinds)}{did_you_mean(layer_kind, kinds)}"
        )
    for owner in (name, data["inherits"].get(name)):
        row = data["layer_kinds"].get(owner, {}).get(layer_kind)
        if row is not None:
            return Support(row[0], row[1], _source(name))
    return Support("N", "", _source(name))


def engines_with(technique: str, layer_kind: str | None = None) -> list[str]:
    """The engines that have a technique, those that have it in part after those that have it."""
    found = [(supports(name, technique, layer_kind), name) for name in engine_names()]
    return [name for answer, name in sorted(found, key=lambda item: _ORDER[item[0].level]) if answer]


def require(engine: str, technique: str, layer_kind: str | None = None) -> Support:
    """The support of a technique. Raises InputError with the reason and the engines that have it if there is none."""
    answer = supports(engine, technique, layer_kind)
    if answer:
        return answer
    where = f" on {layer_kind} layers" if layer_kind else ""
    why = f" ({answer.note})" if answer.note else ""
    have = ", ".join(engines_with(technique, layer_kind)) or "none of the engines kvplan knows"
    raise InputError(
        f"--engine: {canonical_engine(engine)} has no {technique}{where}{why}; engines that have it: {have}"
    )


def require_layers(engine: str, spec: ModelSpec) -> tuple[str, ...]:
    """Warnings about layer kinds the engine handles in part. Raises InputError where it has no such layers at all."""
    warnings = []
    for kind in dict.fromkeys(branch.kind for name in spec.counts for branch in branches(spec.blocks[name])):
        answer = supports_kind(engine, kind)
        if not answer:
            have = ", ".join(name for name in engine_names() if supports_kind(name, kind)) or "none"
            raise InputError(
                f"--engine: {canonical_engine(engine)} has no {kind} layers, which {spec.id} needs; engines that have "
                f"them: {have}"
            )
        if answer.level == "P":
            warnings.append(f"{canonical_engine(engine)} and {kind} layers: {answer.note}")
    return tuple(warnings)


def require_dtype(engine: str, kv_cache_dtype: str) -> str:
    """The canonical name of a cache dtype the engine takes. Raises InputError with the dtypes and engines that fit."""
    name = canonical_engine(engine)
    wanted = find_format(kv_cache_dtype).name
    dtypes = kv_dtypes(name)
    if wanted not in dtypes:
        have = engines_with_dtype(wanted)
        others = f"; engines that have it: {', '.join(have)}" if have else ""
        raise InputError(f"--kv-cache-dtype: found {wanted} with {name}, expected one of {', '.join(dtypes)}{others}")
    return wanted


def engines_with_dtype(kv_cache_dtype: str) -> list[str]:
    """The engines that take a cache dtype; none for a name that kvplan doesn't know."""
    try:
        wanted = find_format(kv_cache_dtype).name
    except InputError:
        return []
    return [name for name in engine_names() if wanted in kv_dtypes(name)]


def kv_dtypes(engine: str) -> tuple[str, ...]:
    """The cache dtypes an engine takes, under kvplan's names."""
    name, data = canonical_engine(engine), _data()
    listed = data["kv_dtypes"].get(name) or data["kv_dtypes"][data["inherits"][name]]
    return tuple(listed)


def _data() -> dict[str, Any]:
    return load_rules("support")


def _canonical_technique(technique: str) -> str:
    from kvplan.cache.techniques.catalog import find_technique  # all twelve modules: only when one is asked for

    word = technique.strip().lower()
    return word if word in _data()["more_techniques"] else find_technique(word).name


def _technique(engine: str, technique: str) -> Support:
    from kvplan.cache.techniques.base import engine_support

    name = _canonical_technique(technique)
    owners = (engine, _data()["inherits"].get(engine))
    if name in _data()["more_techniques"]:
        rows = _data()["more_techniques"][name]
        found = next(rows[owner] for owner in owners if owner in rows)
        return Support(cast(Level, found[0]), found[1], _source(engine))
    for owner in owners:
        for row in engine_support()[name]:
            if row.engine == owner:
                return Support(_LEVELS[row.support], row.note, f"{row.source}, {row.version}")
    return Support("N", "", "")


def _source(engine: str) -> str:
    from kvplan.cache.techniques.base import engine_support

    owner = _data()["inherits"].get(engine, engine)
    return next((f"{row.source}, {row.version}" for row in engine_support()["gqa"] if row.engine == owner), "")
