"""What-ifs: architectural techniques applied to a spec that was not trained with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from kvplan.cache.techniques.compressed import with_csa, with_dsa
from kvplan.cache.techniques.heads import with_kv_heads
from kvplan.cache.techniques.latent import with_mla
from kvplan.cache.techniques.recurrent import with_attention_every
from kvplan.cache.techniques.sharing import with_cla, with_mlkv, with_owners, with_yoco
from kvplan.cache.techniques.windows import with_window
from kvplan.errors import InputError, did_you_mean, show
from kvplan.spec.model import ModelSpec
from kvplan.units import parse_tokens

FIELD = "--what-if"
RUNTIME = {
    "evict": "--evict",
    "quest": "--sparse-read quest",
    "sparse-read": "--sparse-read",
    "kv-cache-dtype": "--kv-cache-dtype",
    "block-size": "--block-size",
    "share-prefix": "--share-prefix",
    "offload": "--offload",
}


def assume(spec: ModelSpec, texts: Iterable[str]) -> ModelSpec:
    """`spec` under all of `texts`, applied in one fixed order whatever order they are written in.

    Raises InputError for one that `what_if` refuses, and for two of which one would replace the layers of the other.
    """
    asked: dict[str, str] = {}
    for text in texts:
        name, _ = _read(text)
        if name in asked:
            raise InputError(f"{FIELD}: found {show(asked[name])} and {show(text)}, expected {name} at most once")
        asked[name] = text
    for name, replaced in _REPLACES.items():
        other = next((other for other in asked if name in asked and other in replaced and other != name), None)
        if other is not None:
            raise InputError(
                f"{FIELD}: found {show(asked[name])} beside {show(asked[other])}, whose layers it would replace, "
                "expected one of the two"
            )
    for name in _CHANGES:
        if name in asked:
            spec = what_if(spec, asked[name])
    return spec


def what_if(spec: ModelSpec, text: str) -> ModelSpec:
    """`spec` as if it had been trained with the technique `text` names, marked among its assumptions.

    `kv-heads=64`, `cla=2`, `mlkv=4`, `owners=0+4+8` or `owners=0-19`, `yoco=1024`, `window=1024` or `window=1024:5/6`,
    `mla=512+64`, `attention-every=4`, `csa=4` or `csa=4+128`, `dsa=2048`. Raises InputError naming the nearest valid
    choice.
    """
    name, value = _read(text)
    mark = f"what-if {name}={value}: needs training, this checkpoint was not trained with it"
    return replace(_CHANGES[name](spec, value), assumptions=(*spec.assumptions, mark))


def _read(text: str) -> tuple[str, str]:
    """The name and the value of one what-if."""
    name, equals, value = text.strip().partition("=")
    name = name.strip().lower().replace("_", "-")
    if name in RUNTIME:
        raise InputError(f"{FIELD}: found {name}, which needs no training; expected it as the option {RUNTIME[name]}")
    if name not in _CHANGES:
        raise InputError(
            f"{FIELD}: found {show(text)}, expected one of {', '.join(_EXAMPLES.values())}"
            f"{did_you_mean(name, _CHANGES)}"
        )
    if not equals or not value.strip():
        raise InputError(f"{FIELD}: found {show(text)}, expected a value; nearest: {_EXAMPLES[name]}")
    return name, value.strip()


def what_ifs(spec: ModelSpec) -> tuple[str, ...]:
    """The marks that what_if left on a spec."""
    return tuple(mark for mark in spec.assumptions if mark.startswith("what-if "))


def _bad(name: str, value: str) -> InputError:
    return InputError(f"{FIELD} {name}: found {show(value)}, expected a value such as {_EXAMPLES[name]}")


def _number(name: str, value: str) -> int:
    if not value.isdecimal() or len(value) > 6 or int(value) < 1:
        raise _bad(name, value)
    return int(value)


def _numbers(name: str, value: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,6}(\+[0-9]{1,6}){0,99}", value):
        raise _bad(name, value)
    return tuple(int(part) for part in value.split("+"))


def _window(spec: ModelSpec, value: str) -> ModelSpec:
    size, colon, share = value.partition(":")
    local, period = 1, 1
    if colon:
        match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", share)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise InputError(
                f"{FIELD} window: found the share {show(share)}, expected local/all layers; nearest: window={size}:5/6"
            )
        local, period = int(match[1]), int(match[2])
    return with_window(spec, parse_tokens(size, f"{FIELD} window"), local, period)


def _mla(spec: ModelSpec, value: str) -> ModelSpec:
    widths = _numbers("mla", value)
    if len(widths) != 2 or widths[0] < 1:
        raise _bad("mla", value)
    return with_mla(spec, *widths)


def _csa(spec: ModelSpec, value: str) -> ModelSpec:
    ratios = _numbers("csa", value)
    if min(ratios) < 1:
        raise _bad("csa", value)
    return with_csa(spec, ratios)


def _owners(spec: ModelSpec, value: str) -> ModelSpec:
    owners: set[int] = set()
    for part in value.split("+"):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if match is None:
            raise _bad("owners", value)
        owners.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return with_owners(spec, owners)


# In the order they are applied: KV heads and which layers are attention at all, what kind those are, what a token costs
# in them, and then which of them share a cache, since only layers of one kind can; an indexer changes reads, so it is
# last. The stored bytes are the product of all, so only what finds its layers gone depends on the order.
_CHANGES: dict[str, Callable[[ModelSpec, str], ModelSpec]] = {
    "kv-heads": lambda spec, value: with_kv_heads(spec, _number("kv-heads", value)),
    "attention-every": lambda spec, value: with_attention_every(spec, _number("attention-every", value)),
    "csa": _csa,
    "window": _window,
    "mla": _mla,
    "cla": lambda spec, value: with_cla(spec, _number("cla", value)),
    "mlkv": lambda spec, value: with_mlkv(spec, _number("mlkv", value)),
    "owners": _owners,
    "yoco": lambda spec, value: with_yoco(spec, parse_tokens(value, f"{FIELD} yoco")),
    "dsa": lambda spec, value: with_dsa(spec, parse_tokens(value, f"{FIELD} dsa")),
}
_SHARING = ("cla", "mlkv", "owners", "yoco")
# What each would undo: compression brings heads, windows and an indexer of its own, a latent has no KV heads.
_REPLACES: dict[str, tuple[str, ...]] = {
    "csa": ("kv-heads", "window", "mla", "dsa", *_SHARING),
    "mla": ("kv-heads",),
    "yoco": ("window", "mla", *_SHARING),
    "cla": _SHARING,
    "mlkv": _SHARING,
}
_EXAMPLES = {
    "kv-heads": "kv-heads=8",
    "cla": "cla=2",
    "mlkv": "mlkv=4",
    "owners": "owners=0-19",
    "yoco": "yoco=1024",
    "window": "window=1024:5/6",
    "mla": "mla=512+64",
    "attention-every": "attention-every=4",
    "csa": "csa=4+128",
    "dsa": "dsa=2048",
}
