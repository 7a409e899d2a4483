"""Which values of an engine's memory flag work: enough for one request, and room for what comes on top."""

from __future__ import annotations

from math import ceil, floor

from kvplan.memory.budget import Budget
from kvplan.record import record
from kvplan.units import gib


@record
class Feasible:
    """The flag's interval in hundredths: from `least` one request fits, up to `most` what lies outside fits.

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
    bound = 1 - outside / stage.share_of
    most = floor(100 * bound + 1e-9) / 100
    if most < budget.share <= bound + 1e-6:  # finer than hundredths, and it works
        most = budget.share
    names = " and ".join(term.name for term in budget.outside) or "the device"
    if least > most:
        short = needed_bytes - stage.nominal - int((most - budget.share) * stage.share_of)
        return Feasible(None, None, f"no value works: at {_hundredths(most)} one request lacks {gib(max(short, 0))}")
    least = max(least, 0.01)
    above = f"above it there is no room for the {names}" if budget.outside else "above it nothing is left"
    return Feasible(least, most, f"set {least:.2f} to {_hundredths(most)}; below it one request doesn't fit, {above}")


def overrun(budget: Budget) -> str | None:
    """The sentence about a memory flag that leaves less than what lies outside it takes; None where there is room."""
    stage = budget.poorest
    outside = sum(term.nominal for term in budget.outside)
    if budget.share is None or not stage.share_of or budget.share <= 1 - outside / stage.share_of + 1e-6:
        return None
    most, names = floor(100 * (1 - outside / stage.share_of)) / 100, " and ".join(term.name for term in budget.outside)
    return (
        f"the memory flag at {_hundredths(budget.share)} leaves no room for the {names}: expect a failed start, "
        f"{most:.2f} works"
    )


def _hundredths(share: float) -> str:
    return f"{share:.2f}" if abs(share - round(share, 2)) < 1e-9 else f"{share:g}"
