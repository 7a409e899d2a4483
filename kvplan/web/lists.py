"""What can be chosen: models, devices, engines."""

from __future__ import annotations

from functools import cache

from pydantic import BaseModel

from kvplan.spec.resolve import registry
from kvplan.units import both


class KnownModel(BaseModel):
    """A model of the registry."""

    id: str
    hf_ids: tuple[str, ...]
    aliases: tuple[str, ...]
    architecture: str | None
    layers: int
    max_context: int | None
    traits: tuple[str, ...]


class Models(BaseModel):
    """The models whose names or traits hold what was searched for."""

    schema_version: int = 1
    models: tuple[KnownModel, ...]


class Device(BaseModel):
    """An accelerator; `memory` says its bytes in words."""

    slug: str
    name: str
    aliases: tuple[str, ...]
    memory_bytes: int
    memory: str
    memory_source: str
    memory_bandwidth_gbs: float
    bf16_tflops: float | None


class Devices(BaseModel):
    """The devices kvplan knows."""

    schema_version: int = 1
    gpus: tuple[Device, ...]


class KnownEngine(BaseModel):
    """An engine and the cache dtypes it takes."""

    name: str
    kv_dtypes: tuple[str, ...]


class Engines(BaseModel):
    """The engines kvplan plans as, and every cache dtype that an analytic estimate takes."""

    schema_version: int = 1
    engines: tuple[KnownEngine, ...]
    kv_dtypes: tuple[str, ...]


@cache
def _known() -> tuple[KnownModel, ...]:
    from kvplan.spec.traits import traits

    known = registry()
    specs = [known.get(model_id) for model_id in known.ids()]
    return tuple(
        KnownModel(
            id=spec.id, hf_ids=spec.hf_ids, aliases=spec.aliases, architecture=spec.architecture,
            layers=spec.layer_count, max_context=spec.max_context, traits=tuple(traits(spec)),
        )
        for spec in specs
    )  # fmt: skip


def models(words: str) -> Models:
    """The models that have every one of `words` in a name, or as a trait."""
    wanted = words.lower().split()

    def fits(model: KnownModel) -> bool:
        names = " ".join((model.id, *model.hf_ids, *model.aliases)).lower()
        return all(word in names or word in model.traits for word in wanted)

    return Models(models=tuple(model for model in _known() if fits(model)))


@cache
def devices() -> Devices:
    """Every device."""
    from kvplan.hardware.accelerators import all_accelerators

    return Devices(
        gpus=tuple(
            Device(
                slug=device.slug, name=device.name, aliases=device.aliases, memory_bytes=device.memory_bytes,
                memory=both(device.memory_bytes), memory_source=device.memory_source,
                memory_bandwidth_gbs=device.memory_bandwidth_gbs, bf16_tflops=device.bf16_tflops,
            )
            for device in all_accelerators()
        )
    )  # fmt: skip


@cache
def engines() -> Engines:
    """Every engine."""
    from kvplan.cache.formats import format_names
    from kvplan.engines.registry import engine_names
    from kvplan.engines.support import kv_dtypes

    return Engines(
        engines=tuple(KnownEngine(name=name, kv_dtypes=kv_dtypes(name)) for name in engine_names()),
        kv_dtypes=tuple(format_names()),
    )
