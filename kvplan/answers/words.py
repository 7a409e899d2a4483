"""What an estimate says in sentences: its verdict, what it assumed, and which options changed nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvplan.answers.composed import Composed
from kvplan.answers.records import Cache, Fit
from kvplan.cache.size import CachePlan
from kvplan.record import record
from kvplan.spec.model import ModelSpec, branches
from kvplan.units import both, counted, tokens

_CONFIDENCE_WORDS = {
    "reconstructed": "was put together from published values, not copied from the checkpoint's own file",
    "class defaults": "comes from class defaults documented for this checkpoint, not from its own file",
    "unverified": "is unverified: no copy of the checkpoint's own file was at hand",
    "assumed": "is assumed: the architecture is unknown and every layer is taken as full attention",
}
#: what several places say of a float32 checkpoint, each in its own words
_FLOAT32 = ("dtype is float32", "torch_dtype is float32", "the checkpoint is float32")
INDEX_KEYS = "index keys"


@record
class Options:
    """The options whose effect depends on the model, as they were given."""

    index_dtype: str = "auto"
    state_dtype: str = "auto"
    value_dtype: str | None = None
    skip: tuple[str | int, ...] = ()
    encoder_tokens: int | None = None
    drafting: bool = False
    gpu: str | None = None
    num_gpus: int = 1


def dtypes_in_force(plan: CachePlan) -> str:
    """The dtypes that K and V, latents and compressed entries really have, and the one asked for where they differ."""
    parts = (group.part for group in plan.groups if group.part.role != "state" and group.part.name != INDEX_KEYS)
    names = list(dict.fromkeys(part.dtype for part in parts))
    asked = plan.precision.name
    names.sort(key=lambda name: name != asked)
    if not names:
        return "recurrent state alone" if plan.groups else asked
    if names == [asked] or (names == [plan.precision.key.name] and plan.precision.value != plan.precision.key):
        return names[0]
    return f"{' and '.join(names)}, {asked} asked"


def verdict(
    plan: CachePlan, context: int, batch: int, cache: Cache, composition: Composed | None, fit: Fit | None,
    unknown_on: str | None,
) -> str:  # fmt: skip
    """The answer in one sentence. `unknown_on` names a device where the size of the weights isn't known."""
    who = "one sequence" if batch == 1 else f"{batch:,} sequences"
    size = both(composition.stored_bytes if composition else cache.needed_bytes)
    length = counted(context, "token")
    need = f"{plan.spec.id} needs {size} of KV cache for {who} of {length} ({dtypes_in_force(plan)})"
    if composition is not None and composition.applied:
        need += f" after {', '.join(composition.applied)}"
    if unknown_on is not None:
        return f"{need}; whether it fits on {unknown_on} is unknown, since the size of the weights is."
    if fit is None:
        return need + "."
    devices = fit.gpu if fit.count == 1 else f"{fit.count} x {fit.gpu}"
    if fit.fits:
        return f"{need}; it fits on {devices} beside the weights."
    return f"{need}; it does NOT fit on {devices} beside the weights."


def spec_words(spec: ModelSpec) -> list[str]:
    """How far the spec can be trusted, and what its importer filled in."""
    words = _CONFIDENCE_WORDS.get(spec.provenance.confidence)
    found = [f"the spec of {spec.id} {words}"] if words else []
    return found + list(spec.assumptions)


def cache_words(spec: ModelSpec, plan: CachePlan, drafting: bool) -> list[str]:
    """What the size counts and what it leaves out."""
    found = ["size is *needed*: whole model, no page rounding, no tokens in flight; an engine reserves more"]
    if spec.dtype == "float32" and plan.precision.key.name == "bf16":
        found.append("the checkpoint is float32; engines serve it, and its cache, in 16 bits")
    if spec.draft_layers and not drafting:
        layers = counted(sum(spec.draft_counts.values()), "draft (MTP) layer")
        found.append(f"{layers} left out: drafting is off")
    if any(group.part.role == "cross" for group in plan.groups) and plan.cross_bytes == 0:
        found.append("cross attention holds no encoder tokens: give --encoder-tokens to count them")
    return found


def float32_once(spec: ModelSpec, sentences: Iterable[str]) -> list[str]:
    """`sentences` with a single one about a float32 checkpoint: the last, which says most."""
    listed = list(dict.fromkeys(sentences))
    about = [sentence for sentence in listed if sentence.startswith(_FLOAT32)]
    keep = next((each for each in about if "its cache" in each), about[-1] if about else "")
    return [each for each in listed if each == keep or each not in about]


def without_effect(spec: ModelSpec, plan: CachePlan, given: Options) -> Iterator[str]:
    """One sentence for each option that changes nothing for this model."""
    parts = [group.part for group in plan.groups]
    cross = [part for part in parts if part.role == "cross"]
    if given.encoder_tokens is not None and not cross:
        yield f"--encoder-tokens has no effect: {spec.id} has no cross attention"
    elif given.encoder_tokens is not None and all(part.stored.constant != given.encoder_tokens for part in cross):
        fixed = tokens(cross[0].stored.constant)
        yield f"--encoder-tokens has no effect: the checkpoint of {spec.id} fixes {fixed}"
    if given.index_dtype != "auto" and not any(part.name == INDEX_KEYS for part in parts):
        yield f"--index-dtype has no effect: {spec.id} has no sparse indexer"
    if given.state_dtype != "auto" and not any(part.dtype_source == "--state-dtype" for part in parts):
        yield f"--state-dtype has no effect: {spec.id} has no recurrent state whose dtype can be chosen"
    if given.drafting and not spec.draft_layers:
        yield f"--drafting has no effect: {spec.id} has no draft (MTP) layers"
    if given.num_gpus != 1 and given.gpu is None:
        yield "--num-gpus has no effect without --gpu"
    for entry in given.skip:
        if not _keeps_kv(spec, entry):
            shown = f"layer {entry}" if isinstance(entry, int) else entry
            yield f"--kv-cache-dtype-skip-layers {shown} has no effect: {spec.id} keeps no K and V there"
    if given.skip and plan.precision.name in ("bf16", "fp16"):
        yield f"--kv-cache-dtype-skip-layers has no effect: K and V are in {plan.precision.name} anyway"


def _keeps_kv(spec: ModelSpec, entry: str | int) -> bool:
    """Whether a skip entry, a layer's number, a block or a layer kind, meets a layer that stores K and V."""
    sequence = spec.sequence()
    names = {sequence[entry]} if isinstance(entry, int) else set(sequence)
    for name in names:
        block = spec.blocks[name]
        kinds = {branch.kind for branch in branches(block)}
        if (isinstance(entry, int) or entry in (name, block.kind) or entry in kinds) and kinds & _STORES_KV:
            return True
    return False


_STORES_KV = {
    "full_attention", "sliding_window", "chunked_attention", "latent_attention", "compressed_sparse", "cross_attention",
}  # fmt: skip


def warnings_for(spec: ModelSpec, context: int, plan: CachePlan) -> list[str]:
    """What must be known about this context and these dtypes."""
    found = []
    if spec.max_context is not None and context > spec.max_context:
        found.append(
            f"{counted(context, 'token')} are beyond the {tokens(spec.max_context or 0)} that {spec.id} declares: "
            "arithmetic only"
        )
    return found + plan.kept_reasons()


def component_names(plan: CachePlan) -> list[str]:
    """A name for each group: block and part; equal ones told apart by their dtype, or else by a number."""
    names = [f"{group.label}: {group.part.name}" for group in plan.groups]
    twice = {name for name in names if names.count(name) > 1}
    names = [
        f"{name} ({group.part.dtype})" if name in twice and _dtypes(plan, names, name) > 1 else name
        for name, group in zip(names, plan.groups, strict=True)
    ]
    return [
        f"{name} {names[:index].count(name) + 1}" if names.count(name) > 1 else name for index, name in enumerate(names)
    ]


def _dtypes(plan: CachePlan, names: list[str], name: str) -> int:
    return len({group.part.dtype for each, group in zip(names, plan.groups, strict=True) if each == name})
