"""What GPUs cost: the user's own table, or a dated example that says it is one."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field

from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator, find
from kvplan.planner.documents import check_document, read_document
from kvplan.record import record
from kvplan.simulator.scenario import Count, Part

EXAMPLE = Path(__file__).with_name("prices.yaml")


class Offer(Part):
    """One accelerator: `per_gpu_hour` of each device, `per_node` in a machine, rented in multiples of `unit`."""

    per_gpu_hour: Annotated[float, Field(gt=0, lt=10_000, allow_inf_nan=False)]
    per_node: Count = 8
    unit: Count = 1


class PriceFile(Part):
    """A price file. `gpus` are named as `kvplan gpus list` names them."""

    date: date
    currency: str = "USD"
    example: bool = False
    gpus: dict[str, Offer]


@record
class Prices:
    """Offers by accelerator slug, in the order of the file; `says` tells where they are from."""

    offers: dict[str, Offer]
    currency: str
    says: str

    def of(self, device: Accelerator) -> Offer:
        """The offer of a device. Raises InputError where it has no price."""
        offer = self.offers.get(device.slug)
        if offer is None:
            have = ", ".join(self.offers)
            raise InputError(
                f"prices: found none for {device.slug}, expected an entry in the file of --prices; there are {have}"
            )
        return offer


def load_prices(path: Path | None = None, inline: dict[str, Offer] | None = None) -> Prices:
    """The prices of a file, of a plan's own table, or the example's. Raises InputError."""
    if inline is not None:
        return Prices(_by_slug(inline, "prices"), "USD", "prices given with the plan")
    read = read_document(path or EXAMPLE, PriceFile)
    offers = _by_slug(read.gpus, str(path or "the example prices"))
    if read.example:
        says = (
            f"EXAMPLE prices of {read.date}: round figures and no one's quote; bring your own with --prices to decide"
        )
    else:
        says = f"prices of {path}, dated {read.date}"
    return Prices(offers, read.currency, says)


def _by_slug(gpus: dict[str, Offer], name: str) -> dict[str, Offer]:
    found: dict[str, Offer] = {}
    for key, offer in gpus.items():
        slug = find(key, f"{name}: gpus").slug
        if slug in found:
            raise InputError(f"{name}: gpus: found {slug} twice (once as {key}), expected each device once")
        found[slug] = offer
    return found


def parse_inline(data: object, name: str) -> dict[str, Offer]:
    """A mapping of devices to a price an hour, or to the fields of an offer."""
    items = data if isinstance(data, dict) else {}
    full = {key: {"per_gpu_hour": value} if isinstance(value, (int, float)) else value for key, value in items.items()}
    if not full:
        raise InputError(f"{name}: found {data!r:.60}, expected devices with a price such as h100: 3.00")
    return check_document({"date": "1970-01-01", "gpus": full}, PriceFile, name).gpus
