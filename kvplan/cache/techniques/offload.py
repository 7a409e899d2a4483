"""Offload: bytes move to another tier, they don't go away. Times are for the final bytes."""

from __future__ import annotations

from collections import OrderedDict

from kvplan.cache.techniques.base import Technique
from kvplan.cache.techniques.options import parse_option
from kvplan.errors import InputError, did_you_mean, show
from kvplan.record import record
from kvplan.units import parse_bytes

TECHNIQUE = Technique(
    number=12,
    name="offload",
    title="Offload to host, disk or network",
    term="place",
    stored="unchanged in total; device bytes fall by what is moved",
    read="unchanged; bytes on the tier cross the link first",
    computed="unchanged; a hit saves the prefill",
    needs_training=False,
    kinds=("full_attention", "sliding_window", "chunked_attention", "latent_attention", "compressed_sparse"),
    untouched="total bytes; recurrent state moves as a whole",
    metadata="a table of what lives where",
    quality="none: exact",
    kernel="transfers in large pieces: 16-token blocks were 32 KiB pieces a layer in vLLM before 0.12, 2 MiB after",
    headline="about 50 GB/s one way, 83.4 GB/s both ways by DMA on H100; Llama 3.1 8B breaks even at a 4 GB/s link",
    source="vLLM post 2026-01-08 (KV offloading connector); arithmetic",
    option="--offload cpu:64GiB",
)

FIELD = "--offload"
_EXAMPLE = "cpu:64GiB or nvme:1TB,bw=7GB/s"
# Bytes a second one way, datasheet or measured; a network has no default.
LINKS: dict[str, int | None] = {
    "cpu": 50 * 10**9,
    "pcie4": 25 * 10**9,
    "pcie5": 50 * 10**9,
    "nvlink-c2c": 450 * 10**9,
    "nvme": 7 * 10**9,
    "network": None,
}


@record
class Offload:
    """A tier behind a link: its name, how many bytes it takes and the link's bytes a second."""

    tier: str
    capacity_bytes: int
    bandwidth: int


@record
class Residence:
    """Where the bytes live: `device_bytes` + `moved_bytes` = total. Times are seconds.

    `resume_seconds` is what bringing all moved bytes back takes.
    """

    device_bytes: int
    moved_bytes: int
    tier: str | None = None
    resume_seconds: float = 0.0


def place(total_bytes: int, offload: Offload | None) -> Residence:
    """Move as much of `total_bytes` as the tier takes."""
    if offload is None:
        return Residence(total_bytes, 0)
    moved = min(total_bytes, offload.capacity_bytes)
    return Residence(total_bytes - moved, moved, offload.tier, transfer_seconds(moved, offload.bandwidth))


def transfer_seconds(size_bytes: int, bandwidth: float, fragments: int = 0, fragment_seconds: float = 0.0) -> float:
    """bytes / bandwidth + fragments x overhead."""
    return size_bytes / bandwidth + fragments * fragment_seconds


def exposed_seconds(transfer: float, compute_ahead: float) -> float:
    """What of a transfer the compute of the layers ahead does not hide."""
    return max(0.0, transfer - compute_ahead)


def recompute_seconds(active_parameters: float, flops: float, attention_flops: float = 0.0) -> float:
    """Seconds to compute one token anew: (2 x active parameters + attention) / achieved FLOP/s."""
    return (2 * active_parameters + attention_flops) / flops


def break_even_bandwidth(
    token_bytes: int, active_parameters: float, flops: float, attention_flops: float = 0.0
) -> float:
    """Bytes a second above which loading a token's cache beats recomputing it."""
    return token_bytes / recompute_seconds(active_parameters, flops, attention_flops)


def parse_offload(text: str) -> Offload:
    """Parse `cpu:64GiB[,bw=50GB/s]`. Raises InputError for an unknown tier or a network without a rate."""
    option = parse_option(text, FIELD, _EXAMPLE)
    if option.name not in LINKS:
        raise InputError(
            f"{FIELD}: found {show(option.name)}, expected one of {', '.join(LINKS)}{did_you_mean(option.name, LINKS)}"
        )
    if option.value is None:
        raise InputError(f"{FIELD}: found {show(text)}, expected a size such as {_EXAMPLE}")
    size = parse_bytes(option.value, FIELD)
    bandwidth = option.bandwidth("bw") or LINKS[option.name]
    option.finish(("bw",))
    if bandwidth is None:
        raise InputError(f"{FIELD}: found {show(text)}, expected the link's rate too, such as {text},bw=25GB/s")
    return Offload(option.name, size, bandwidth)


class Tiers:
    """A device of `slots` slots before a larger tier: what is used comes in, the least recently used goes out."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.device: OrderedDict[str, None] = OrderedDict()
        self.tier: set[str] = set()
        self.moves: list[tuple[str, str]] = []

    def use(self, name: str) -> None:
        """Bring `name` onto the device, moving the least recently used one out where the device is full."""
        if name in self.device:
            self.device.move_to_end(name)
            return
        if name in self.tier:
            self.tier.remove(name)
            self.moves.append((name, "back"))
        if len(self.device) == self.slots:
            oldest, _ = self.device.popitem(last=False)
            self.tier.add(oldest)
            self.moves.append((oldest, "out"))
        self.device[name] = None
