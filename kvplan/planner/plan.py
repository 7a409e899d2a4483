"""`kvplan plan`: workload and limits in, ranked configurations out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kvplan.errors import InputError
from kvplan.planner.answer import Asked, Lost, Plan
from kvplan.planner.demand import Demand, demand_of
from kvplan.planner.options import Options
from kvplan.planner.prices import Prices, load_prices
from kvplan.planner.request import PlanRequest
from kvplan.planner.search import Search, Searched
from kvplan.planner.space import devices, shapes
from kvplan.planner.verify import MOST_USERS, Verified, Verifier
from kvplan.spec.resolve import LoadedModel, resolve_model

#: Told of the stage, what is done and what there is to do.
Progress = Callable[[str, int, int], None]
SHOWN, FRONT_STEPS = 8, 5


def plan(
    request: PlanRequest,
    *,
    folder: Path = Path(),
    prices: Prices | None = None,
    model_dir: Path | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Search, simulate the finalists, and say why the others lost.

    A trace's relative path is looked up in `folder`. Raises InputError for what can't be read, for a GPU without a
    price, and for constraints that leave nothing to search, naming the one that emptied it.
    """
    models = {name: resolve_model(name, model_dir=model_dir) for name in request.models}
    prices = prices or load_prices(inline=request.prices)
    demand = demand_of(request, folder)
    found, search = _search(request, models, prices, demand, progress)
    verifier = Verifier(request, search, folder, _stage(progress, "simulate"))
    crowd = search.planned.users or 0
    good, unproven = verifier.best(found.found) if request.finalists and crowd <= MOST_USERS else ([], 0)
    if good:
        good = verifier.more(found.found, good)
    options = Options(request, search, verifier)
    ranked = options.ranked(found, good, SHOWN)
    nearest = () if ranked else options.nearest(found, SHOWN)
    notes = []
    if crowd > MOST_USERS:
        notes.append(f"{crowd:,} users are too many to simulate: all figures are estimates")
    elif ranked and not good and request.finalists:
        notes.append("no configuration that can be simulated meets the limits: all figures are estimates")
    return Plan(
        schema_version=1,
        command="plan",
        verdict=options.verdict(ranked, nearest, prices.currency),
        asked=_asked(request, demand),
        currency=prices.currency,
        options=ranked,
        nearest=nearest,
        front=options.front(found, good, FRONT_STEPS),
        lost=_lost(found, verifier),
        candidates=found.candidates,
        shapes=found.shapes,
        simulations=verifier.runs,
        unproven=unproven,
        assumptions=_assumptions(request, models, prices, good, unproven, demand),
        warnings=tuple(notes),
    )


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    tell = progress
    return lambda done, total: tell(name, done, total)


def _search(
    request: PlanRequest, models: dict[str, LoadedModel], prices: Prices, demand: Demand, progress: Progress | None
) -> tuple[Searched, Search]:
    offered = devices(request, prices)
    kept, removed, total = shapes(request, {name: loaded.spec for name, loaded in models.items()}, offered)
    if not kept:
        raise InputError(_emptied(removed, total))
    search = Search(request, models, demand, offered)
    return search.run(kept, removed, total, _stage(progress, "search")), search


def _emptied(removed: Counter[str], total: int) -> str:
    """Which constraints left nothing; the last that acted is the one to loosen first."""
    parts = ", ".join(f"{reason} ({count})" for reason, count in removed.most_common())
    last = removed.most_common()[-1][0] if len(removed) > 1 else next(iter(removed), "the search space")
    hint = "" if len(removed) < 2 else f"; {last} ruled out the last of them"
    return f"plan: found no configuration left of {total:,} before memory, emptied by {parts}{hint}, expected some left"


def _asked(request: PlanRequest, demand: Demand) -> Asked:
    return Asked(
        request.models, demand.rate, demand.users, demand.think, demand.prompt, demand.fresh, demand.output,
        demand.longest, demand.bursts, request.headroom, request.redundancy, request.slo.given(), request.slo.quantile,
    )  # fmt: skip


def _lost(found: Searched, verifier: Verifier) -> tuple[Lost, ...]:
    """Reasons with their counts: constraints, memory, limits, and simulations that missed."""
    lost = [Lost(reason, count, "") for reason, count in found.removed.most_common()]
    lost += [Lost(reason, count, found.examples[reason]) for reason, count in found.lost.most_common()]
    failed: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for item in verifier.done.values():
        if item is not None and not item.meets:
            worst = max(item.missed, key=lambda name: item.missed[name])
            reason = f"simulated, misses {worst}"
            failed[reason] += 1
            examples.setdefault(reason, _missed(item, worst))
    return (*lost, *(Lost(reason, count, examples[reason]) for reason, count in failed.most_common()))


def _missed(item: Verified, worst: str) -> str:
    candidate = item.candidate
    by = f"by {item.missed[worst]:.2f}x" if item.missed[worst] > 1 else item.document["stability"]
    return f"{candidate.replicas} x ({candidate.shape.words()}): {by}"


def _assumptions(
    request: PlanRequest,
    models: dict[str, LoadedModel],
    prices: Prices,
    good: list[Verified],
    unproven: int,
    demand: Demand,
) -> tuple[str, ...]:
    notes = [
        prices.says,
        f"step times are {request.step_time}: without a calibration run on your hardware expect tens of percent",
        "latencies and costs are at the demand and its headroom; the loss of a machine at the demand alone",
        "one machine lost takes the replicas on it; replicas are filled into machines evenly",
    ]
    if good and unproven:
        notes.append(
            f"{unproven} shapes might be cheaper than the first: `simulations` {request.simulations} were used up"
        )
    elif good:
        notes.append(
            "of what can be simulated the first is the cheapest: every cheaper shape was ruled out or simulated"
        )
    if demand.recorded is not None:
        notes.append(f"of the trace the first {demand.recorded:,} requests are planned for")
    if demand.fresh == demand.prompt:
        notes.append("every prompt is computed whole: no shared prefix, sessions or trace with repeats was given")
    notes.append("searched are vLLM-style batching, KV dtypes and prefix caching; no eviction, no sparse reads")
    for name, loaded in models.items():
        if loaded.spec.provenance.confidence != "verbatim":
            notes.append(f"the spec of {name} is {loaded.spec.provenance.confidence}")
    return tuple(notes)
