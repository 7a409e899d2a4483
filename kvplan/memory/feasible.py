"""Which values of an engine's memory flag work: enough for one request, and room for what comes on top."""

from __future__ import annotations

from math import ceil, floor

from kvplan.memory.budget import Budget
from kvplan.record import record
from kvplan.units import gib


@record
class Feasible:
    """The flag's interval in whole hundredths: from `least` one request fits, up to `most` what lies outside fits.

    None where no value works, or where the engine has no such flag; `says` is the sentence for the user.
    """

    least: float | None
    most: float | None
    says: str


def feasible_share(budget: Budget, needed_bytes: int) -> Feasible:
    """The values of the memory flag with which `needed_bytes` of cache a rank fit and the device isn't overrun."""
    stage = budget.poorest
    if budget.share is None or not stage.share_of:
        fits = stage.nominal >= needed_bytes
        return Feasible(None, None, "one request fits" if fits else f"{gib(needed_bytes - stage.nominal)} are missing")
    outside = sum(term.nominal for term in budget.outside)
    least = ceil(100 * (budget.share + (needed_bytes - stage.nominal) / stage.share_of) - 1e-9) / 100
    most = floor(100 * (1 - outside / stage.share_of) + 1e-9) / 100
    names = " and ".join(term.name for term in budget.outside) or "the device"
    if least > most:
        short = needed_bytes - stage.nominal - int((most - budget.share) * stage.share_of)
        return Feasible(None, None, f"no value works: at {most:.2f} one request lacks {gib(max(short, 0))}")
    least = max(least, 0.01)
    fail = "don't" if len(budget.outside) > 1 else "doesn't"
    above = f"above it the {names} {fail}" if budget.outside else "above it nothing is left"
    return Feasible(least, most, f"set {least:.2f} to {most:.2f}; below it one request doesn't fit, {above}")
