"""Weight bytes of a checkpoint: from its tensors where they were read, else from counts and storage format."""

from __future__ import annotations

import fnmatch
import re
from fractions import Fraction
from typing import TYPE_CHECKING

from kvplan.memory.weight_formats import WeightFormat, expert_format, method_format, mixed
from kvplan.record import record
from kvplan.spec.model import ModelDtype, ModelSpec, Parameters, WeightQuantization, branches

if TYPE_CHECKING:
    from kvplan.spec.importers.tensors import CheckpointTensors

DTYPE_BITS: dict[ModelDtype, int] = {"bfloat16": 16, "float16": 16, "float32": 32}
PARTS = ("embedding", "attention", "dense_mlp", "experts", "shared_experts", "router", "norms", "head")
#: parts made of linear layers, the only ones that a quantization method packs
LINEAR_PARTS = ("attention", "dense_mlp", "experts", "shared_experts")
#: A published count this far above the counted one hints at parts that aren't counted.
PUBLISHED_TOLERANCE_PERMILLE = 15

# Module names that stand for a part when a checkpoint lists modules left unquantized: a part stays whole only where all
# names of one spelling are listed. No checkpoint has this many layers, so a pattern naming one layer matches none.
_LAYER = "model.layers.99999"
_STANDS_FOR: dict[str, tuple[tuple[str, ...], ...]] = {
    "attention": (
        tuple(f"{_LAYER}.self_attn.{name}_proj" for name in "qkvo"),
        tuple(f"{_LAYER}.attn.{name}" for name in ("wq_a", "wq_b", "wkv", "wo_a", "wo_b")),
        tuple(f"{_LAYER}.attn.{name}_proj" for name in "qkvo"),
    ),
    "dense_mlp": (
        tuple(f"{_LAYER}.mlp.{name}_proj" for name in ("gate", "up", "down")),
        tuple(f"{_LAYER}.ffn.w{index}" for index in (1, 2, 3)),
    ),
    "experts": (
        tuple(f"{_LAYER}.mlp.experts.0.{name}_proj" for name in ("gate", "up", "down")),
        tuple(f"{_LAYER}.ffn.experts.0.w{index}" for index in (1, 2, 3)),
    ),
    "shared_experts": (
        tuple(f"{_LAYER}.mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")),
        tuple(f"{_LAYER}.mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")),
        tuple(f"{_LAYER}.ffn.shared_experts.w{index}" for index in (1, 2, 3)),
    ),
}


@record
class WeightPart:
    """One part of the weights. `parameters` are stored values where the bytes come from a checkpoint's headers."""

    name: str
    parameters: int
    bits_per_weight: Fraction
    bytes: int
    says: str


@record
class WeightEstimate:
    """Bytes of all weights on one device that holds the whole model.

    `exact` says that the bytes follow without rounding or guess: from headers, or from counts in one plain dtype.
    """

    total_bytes: int
    parts: tuple[WeightPart, ...]
    source: str
    exact: bool
    assumptions: tuple[str, ...] = ()

    @property
    def bits_per_weight(self) -> Fraction:
        """Mean over all parts."""
        return Fraction(8 * self.total_bytes, max(1, sum(part.parameters for part in self.parts)))


def weight_bytes(
    spec: ModelSpec,
    *,
    tensors: CheckpointTensors | None = None,
    served_dtype: ModelDtype | None = None,
    drafting: bool = False,
) -> WeightEstimate | None:
    """Return the bytes of a model's weights, or None when neither tensors nor any parameter count is known.

    `tensors` are the sums of a checkpoint's headers, unless empty or partial. `served_dtype` is what unquantized
    weights are loaded in; by default the checkpoint's own, with float32 taken down to 16 bits as engines do.
    `drafting` adds the draft layers.
    """
    dtype, assumptions = _served(spec, served_dtype)
    if tensors is not None and usable(tensors):
        return _from_tensors(spec, tensors, dtype, drafting, assumptions)
    if tensors is not None:
        assumptions.append("the checkpoint's files hold not all of its tensors, so they don't tell the weights")
    if spec.parameters is not None:
        return _from_parameters(spec, spec.parameters, dtype, drafting, assumptions)
    if spec.published_parameters_b is not None and spec.published_parameters_b[0] is not None:
        return _from_published(spec, spec.published_parameters_b[0], dtype, assumptions)
    return None


def usable(tensors: CheckpointTensors) -> bool:
    """Whether the headers tell the bytes of the whole model."""
    return tensors.total_bytes > 0 and not tensors.partial


@record
class Uncounted:
    """Weights that are published but not counted from the config, taken at 16 bits."""

    parameters: int
    bytes: int
    says: str


def uncounted(spec: ModelSpec, drafting: bool = False) -> Uncounted | None:
    """What a published parameter count has beyond the counted one, where rounding doesn't explain it; else None."""
    published = spec.published_parameters_b[0] if spec.published_parameters_b else None
    if published is None or spec.parameters is None:
        return None
    counted = spec.parameters.total + (spec.parameters.draft if drafting else 0)
    stated = round(published * 10**9)
    # Counts from 1,000 B on are published as tenths of a trillion: 1.6 T is anything from 1.55 T.
    rounding = 50 * 10**9 if published >= 1000 and stated % 10**11 == 0 else 0
    if 1000 * (stated - rounding) <= counted * (1000 + PUBLISHED_TOLERANCE_PERMILLE):
        return None
    causes = ["a vision or audio tower"] if has_tower(spec) else []
    causes += ["draft layers"] if spec.draft_layers and not drafting else []
    causes += ["an output matrix of its own"] if spec.tied_embeddings else []
    if spec.provenance.confidence == "class defaults":
        causes.append("what a file of class defaults leaves out")
    says = (
        f"{published:g} B parameters are published and {counted / 1e9:.2f} B counted from the config; the difference "
        f"({', '.join(causes or ['modules that the config does not name'])}) is taken at 16 bits"
    )
    return Uncounted(stated - counted, 2 * (stated - counted), says)


_TOWER = re.compile(r"ConditionalGeneration|Vision|VL|Omni|Audio|ImageText|Llava|Mllama|MultiModal", re.IGNORECASE)


def has_tower(spec: ModelSpec) -> bool:
    """Whether the architecture is one that sees or hears beside its text model; an encoder of text is no tower."""
    for block in spec.blocks.values():
        if block.kind == "parallel" and any(branch.kind == "cross_attention" for branch in branches(block)):
            return False
    return _TOWER.search(spec.architecture or "") is not None


def _served(spec: ModelSpec, asked: ModelDtype | None) -> tuple[ModelDtype, list[str]]:
    if asked is not None:
        return asked, []
    if spec.dtype == "float32":
        return "bfloat16", ["the checkpoint is float32; engines load it in 16 bits unless told otherwise"]
    return spec.dtype, []


def _from_tensors(
    spec: ModelSpec, tensors: CheckpointTensors, dtype: ModelDtype, drafting: bool, assumptions: list[str]
) -> WeightEstimate:
    names = f"{len(tensors.files)} files" if len(tensors.files) != 1 else tensors.files[0]
    if not tensors.complete:
        whole = WeightPart("all weights", 0, Fraction(0), tensors.total_bytes, "total_size of the index")
        if spec.draft_layers and not drafting:
            assumptions.append("the index gives no parts: draft layers are in the total though drafting is off")
        return WeightEstimate(
            tensors.total_bytes, (whole,), "safetensors index: metadata.total_size", True, tuple(assumptions)
        )
    parts = [
        WeightPart(
            name,
            tensors.parameters_by_part.get(name, 0),
            Fraction(8 * size, max(1, tensors.parameters_by_part.get(name, 0))),
            size,
            "bytes of the header's tensors",
        )
        for name, size in tensors.bytes_by_part.items()
    ]
    if not drafting and any(part.name == "draft" for part in parts):
        parts = [part for part in parts if part.name != "draft"]
        assumptions.append("the checkpoint's draft layers are left out: drafting is off")
    if spec.tied_embeddings and any(part.name == "head" for part in parts):
        parts = [part for part in parts if part.name != "head"]
        assumptions.append("the checkpoint stores an output matrix that the model ties to its embedding: counted once")
    floats = tensors.parameters_by_dtype.get("F32", 0)
    stored = sum(tensors.parameters_by_dtype.values())
    if spec.dtype == "float32" and floats == stored and DTYPE_BITS[dtype] == 16:
        parts = [WeightPart(p.name, p.parameters, p.bits_per_weight / 2, p.bytes // 2, p.says) for p in parts]
    else:
        assumptions = [sentence for sentence in assumptions if "float32" not in sentence]
    return WeightEstimate(
        sum(part.bytes for part in parts), tuple(parts), f"tensor headers of {names}", True, tuple(assumptions)
    )


def _from_parameters(
    spec: ModelSpec, parameters: Parameters, dtype: ModelDtype, drafting: bool, assumptions: list[str]
) -> WeightEstimate:
    plain = DTYPE_BITS[dtype]
    packed = part_formats(spec.quantization, assumptions) if spec.quantization is not None else {}
    parts = [_part(name, getattr(parameters, name), packed.get(name), plain) for name in PARTS]
    if drafting:
        parts.append(_part("draft", parameters.draft, packed.get("attention"), plain))
    parts = [part for part in parts if part.parameters]
    if spec.draft_layers and not parameters.draft and drafting:
        assumptions.append("the size of the draft layers is unknown: not counted")
    source = f"{parameters.total:,} parameters counted from the config"
    if spec.quantization is not None:
        source += f", stored as {_stored_as(spec.quantization, packed)}"
    exact = spec.quantization is None
    return WeightEstimate(sum(part.bytes for part in parts), tuple(parts), source, exact, tuple(assumptions))


def _part(name: str, parameters: int, weight_format: WeightFormat | None, plain_bits: int) -> WeightPart:
    bits = Fraction(plain_bits) if weight_format is None else weight_format.bits_per_weight
    says = f"{plain_bits} bits" if weight_format is None else weight_format.says
    return WeightPart(name, parameters, bits, _ceil_bytes(parameters, bits), says)


def _ceil_bytes(parameters: int, bits: Fraction) -> int:
    """Bytes of so many weights, rounded up to a whole byte."""
    return -(-parameters * bits.numerator // (8 * bits.denominator))


def _stored_as(quantization: WeightQuantization, packed: dict[str, WeightFormat]) -> str:
    """The method by name, with its format where the name doesn't tell it or the experts have one of their own."""
    if not packed:
        return quantization.method
    formats = {name: _short(found) for name, found in packed.items()}
    common = next((found for name, found in formats.items() if name != "experts"), "")
    experts = formats.get("experts", common)
    main = common or experts
    words = quantization.method
    if main not in quantization.method.lower().replace("-", "").replace("_", ""):
        words += f" ({main})"
    return f"{words}, experts {experts}" if experts != main else words


def _short(found: WeightFormat) -> str:
    """`fp8`, `int4`, `mxfp4`: the family of a format without its scale layout."""
    return found.name.partition("_")[0]


def _from_published(spec: ModelSpec, published: float, dtype: ModelDtype, assumptions: list[str]) -> WeightEstimate:
    count = int(Fraction(str(published)) * 10**9)
    packed = part_formats(spec.quantization, assumptions) if spec.quantization is not None else {}
    widest = max(packed.values(), key=lambda item: item.bits_per_weight, default=None)
    part = _part("all weights", count, widest, DTYPE_BITS[dtype])
    assumptions.append(f"the weights follow from the published count of {published:g} B, which is rounded")
    source = f"{published:g} B published parameters x {float(part.bits_per_weight):g} bits"
    return WeightEstimate(part.bytes, (part,), source, False, tuple(assumptions))


def part_formats(quantization: WeightQuantization, assumptions: list[str]) -> dict[str, WeightFormat]:
    """The storage format of each quantized part; a part that isn't named stays in the model's dtype.

    Adds a sentence to `assumptions` for what the config leaves open.
    """
    main, packs = method_format(quantization)
    if main is None:
        assumptions.append(
            f"the weight format {quantization.method} at {quantization.bits or 'unknown'} bits isn't known: "
            "all weights are counted unquantized"
        )
        return {}
    formats = dict.fromkeys(packs, main)
    if mixed(quantization):
        assumptions.append(
            f"{quantization.method} mixes formats by layer: all linear layers are counted at {main.bits} bits"
        )
    if "embedding" in packs:
        assumptions.append(f"every weight counts {float(main.bits_per_weight):g} bits: {main.says}")
    else:
        assumptions.append("embedding, router, norms and head stay in the model's dtype; scales count whole groups")
    if quantization.experts_bits is not None and quantization.experts_bits != main.bits:
        # The list of kept modules then speaks of the experts' format: what it names stays in the wider one.
        formats["experts"] = expert_format(quantization.experts_bits, quantization.group_size) or main
        return formats
    for part in LINEAR_PARTS:
        kept = _kept(part, quantization.kept)
        if kept is True:
            formats.pop(part, None)
        elif kept is None and part in formats:
            assumptions.append(f"some modules of the {part} stay unquantized: counted as quantized")
    return formats


def _kept(part: str, patterns: tuple[str, ...]) -> bool | None:
    """Whether a part is left unquantized: all of it (True), nothing (False) or something in between (None)."""
    seen = False
    for names in _STANDS_FOR[part]:
        hits = [any(_matches(name, pattern) for pattern in patterns) for name in names]
        if all(hits):
            return True
        seen = seen or any(hits)
    return None if seen else False


def _matches(module: str, pattern: str) -> bool:
    """A module against one pattern of a checkpoint's list: `re:` regex, glob with `*`, or a run of name components."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, f"{pattern}.*")
    return f".{pattern.strip('.')}." in f".{module}."
