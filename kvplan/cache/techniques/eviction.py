"""Eviction: a budget of resident tokens a layer, taken after the window.

Each rule gives the tokens a layer keeps after a prompt, to the token, as the published code computes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, TypeAlias

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.options import Option, parse_option, parse_share
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.units import parse_tokens

TECHNIQUE = Technique(
    number=9,
    name="eviction",
    title="Eviction: H2O, SnapKV, PyramidKV, StreamingLLM, Ada-KV, TOVA",
    term="tokens",
    stored="min(n, window, budget) tokens a layer; SnapKV, PyramidKV and Ada-KV grow again with each generated token",
    read="the same",
    computed="the same; the prompt is still computed in full",
    needs_training=False,
    kinds=("full_attention", "sliding_window", "chunked_attention", "latent_attention"),
    untouched="recurrent state; windows at or below the budget; the peak while the prompt is prefilled",
    metadata="scores of the kept tokens; per-head lengths for Ada-KV",
    quality="dropped tokens are gone: retrieval and multi-turn use must be evaluated",
    kernel="a patched engine; reference code caches query-head copies; only wholly freed blocks free memory",
    headline="SnapKV 8.2x at 16,384 tokens is a budget of 1,998; PyramidKV 12 % is 1,024 tokens of 8.4k on average",
    source="arXiv 2306.14048 (H2O), 2404.14469 (SnapKV), 2406.02069 (PyramidKV), 2407.11550 (Ada-KV)",
    option="--evict snapkv:2048",
)

FIELD = "--evict"
_EXAMPLE = "snapkv:2048, h2o:0.1+0.1 or streamingllm:4+2044"
Method: TypeAlias = Literal["snapkv", "h2o", "pyramidkv", "streamingllm", "tova", "adakv"]
METHODS: tuple[Method, ...] = ("snapkv", "h2o", "pyramidkv", "streamingllm", "tova", "adakv")
GROWING = ("snapkv", "pyramidkv", "adakv")


@record
class Eviction:
    """One eviction rule with its settings.

    `first` and `second` are the two parts of H2O and StreamingLLM (heavy or sinks, recent), `first` alone the capacity
    of the others, `window` included; a float is a share of the prompt. `per_query_head` caches copies for each query
    head as the reference code does; `scattered` frees no block that still holds a kept token; `masked` frees nothing.
    """

    method: Method
    first: int | float
    second: int | float = 0
    window: int = 32
    beta: int = 20
    floor: float = 0.2
    per_query_head: bool = False
    scattered: bool = False
    masked: bool = False

    @property
    def grows(self) -> bool:
        """Whether generated tokens are kept on top of the budget."""
        return self.method in GROWING

    @property
    def by_layer(self) -> bool:
        """Whether layers have different budgets."""
        return self.method == "pyramidkv"

    def kept(self, prompt: int) -> int:
        """Tokens one layer keeps right after a prompt of `prompt` tokens (PyramidKV: see layer_tokens)."""
        budget = _part(self.first, prompt) + _part(self.second, prompt)
        return prompt if self.masked else min(prompt, budget)

    def layer_tokens(self, prompt: int, layers: int) -> tuple[int, ...]:
        """Tokens each of `layers` attention layers keeps right after the prompt."""
        if self.by_layer and not self.masked:
            return pyramid_tokens(prompt, _part(self.first, prompt), self.window, self.beta, layers)
        return (self.kept(prompt),) * layers

    def budgets(self, n: int, generated: int, layers: int) -> tuple[int, ...]:
        """Resident tokens each layer may hold of n stored ones, the last `generated` of them generated.

        A growing rule keeps all generated tokens; the others keep at most their budget, filled up by generation.
        """
        prompt = n - generated
        if self.masked:
            return (n,) * layers
        if self.grows:
            return tuple(kept + generated for kept in self.layer_tokens(prompt, layers))
        budget = _part(self.first, prompt) + _part(self.second, prompt)
        return (min(n, budget),) * layers

    def head_floor(self, prompt: int) -> int:
        """Ada-KV's safeguard: the least tokens any head keeps, int(kept x floor)."""
        return int(self.kept(prompt) * self.floor)


def _part(size: int | float, prompt: int) -> int:
    """A budget in tokens; shares are cut to whole tokens in floating point, as the reference code does."""
    return int(size * prompt) if isinstance(size, float) else size


def pyramid_tokens(prompt: int, capacity: int, window: int, beta: int, layers: int) -> tuple[int, ...]:
    """PyramidKV's budget of each layer, largest first, in the integer steps of its published code.

    Below the capacity everything stays; below twice the capacity (less windows) the budget is flat; else it falls by
    (max - min) // (layers - 1) a layer, so the sum is a little above layers x capacity.
    Source: Zefan-Cai/KVCache-Factory pyramidkv/pyramidkv_utils.py.
    """
    if prompt < capacity:
        return (prompt,) * layers
    room = capacity - window
    if prompt < 2 * room:
        return (capacity,) * layers
    least = room // beta
    most = 2 * room - least
    if most >= prompt - window:
        most = prompt - window
        least = 2 * room - most
    step = (most - least) // (layers - 1) if layers > 1 else 0
    return tuple(most - layer * step + window for layer in range(layers))


def parse_evict(text: str) -> Eviction:
    """Parse an eviction rule, raising InputError that names what is wrong:

    `snapkv:2048[,window=32]`, `pyramidkv:2048[,window=32][,beta=20]`, `h2o:0.1+0.1` (shares of the prompt) or
    `h2o:200+200`, `streamingllm:4+2044`, `tova:1024`, `adakv:1024` or `adakv:compression=0.75` `[,floor=0.2]`
    `[,masked]`; each takes `per-query-head` and `scattered`.
    """
    option = parse_option(text, FIELD, _EXAMPLE)
    names: Collection[str] = METHODS
    if option.name == "dms":
        raise InputError(
            f"{FIELD}: found dms, which needs training; expected a rule that needs none: {', '.join(names)}"
        )
    if option.name not in names:
        raise InputError(
            f"{FIELD}: found {show(option.name)}, expected one of {', '.join(names)}{did_you_mean(option.name, names)}"
        )
    method: Method = next(name for name in METHODS if name == option.name)
    known = ["per-query-head", "scattered"]
    first, second = _sizes(option, method, known)
    rule = Eviction(method, first, second, **_settings(option, method, known))
    option.finish(known)
    _check(rule)
    return rule


def _settings(option: Option, method: Method, known: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "per_query_head": option.flag("per-query-head"),
        "scattered": option.flag("scattered"),
    }
    if method in GROWING:
        known.append("window")
        found["window"] = option.whole("window", 32, 0, 10**6)
    if method == "pyramidkv":
        known.append("beta")
        found["beta"] = option.whole("beta", 20, 1, 10**6)
    if method == "adakv":
        known += ["floor", "masked", "compression"]
        found["floor"] = option.share("floor", 0.2)
        found["masked"] = option.flag("masked")
    return found


def _sizes(option: Option, method: Method, known: list[str]) -> tuple[int | float, int | float]:
    compression = option.share("compression", None) if method == "adakv" else None
    if compression is not None and option.value is None:
        return 1 - compression, 0
    if option.value is None or compression is not None:
        raise InputError(f"{FIELD}: found {show(option.text)}, expected a budget such as {_EXAMPLE}")
    parts = option.value.split("+")
    if len(parts) != (2 if method in ("h2o", "streamingllm") else 1):
        shape = "two parts such as 4+2044 (or 0.1+0.1 of the prompt for h2o)" if len(parts) == 1 else "one number"
        raise InputError(f"{FIELD}: found {show(option.value)} for {method}, expected {shape}")
    sizes = [_size(part, method) for part in parts]
    return sizes[0], sizes[1] if len(sizes) == 2 else 0


def _size(text: str, method: Method) -> int | float:
    if "." in text:
        if method not in ("h2o", "adakv", "snapkv", "tova"):
            raise InputError(f"{FIELD}: found {show(text)} for {method}, expected a whole number of tokens")
        return parse_share(text, FIELD)
    return 0 if text == "0" else parse_tokens(text, FIELD)


def _check(rule: Eviction) -> None:
    if rule.first + rule.second <= 0:
        raise InputError(f"{FIELD}: found a budget of 0 tokens for {rule.method}, expected at least 1")
    windowed = rule.method in GROWING
    if windowed and isinstance(rule.first, int) and rule.first <= rule.window:
        raise InputError(
            f"{FIELD}: found a capacity of {rule.first} with window={rule.window}, expected a capacity above the "
            f"observation window, which it includes; nearest: {rule.window + 1}"
        )


def budget_for(n: int, ratio: float) -> int:
    """The most tokens a layer may keep of n for a cache `ratio` times smaller: what a published ratio assumes."""
    return int(n / ratio)


def heavy_hitters(scores: Sequence[float], budget: int, recent: int) -> tuple[int, ...]:
    """H2O's choice: the last `recent` positions and the best-scored of the others, in order of position."""
    edge = max(0, len(scores) - recent)
    heavy = sorted(range(edge), key=lambda position: (-scores[position], position))[: max(0, budget - recent)]
    return tuple(sorted((*heavy, *range(edge, len(scores)))))


def freed_blocks(kept: Collection[int], n: int, block: int) -> int:
    """Blocks that hold none of the `kept` positions of n tokens: the only ones whose memory comes back."""
    return -(-n // block) - len({position // block for position in kept})
