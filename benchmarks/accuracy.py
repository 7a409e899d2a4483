"""How far kvplan's cache budgets are from what engines logged: error tables, calibration, cross-validation.

`python -m benchmarks.accuracy` prints docs/accuracy.md, `--write` writes it, `--check` exits 1 when it is out of date.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median

from benchmarks.calibration import FITTED, figures_for, fit
from benchmarks.evidence import GIB, Case, cases, planned, predict, threads
from kvplan.memory.budget import Budget

DOCUMENT = Path(__file__).parent.parent / "docs" / "accuracy.md"
TARGETS = (3.0, 10.0)
MISS_PERCENT = 5.0
COLUMNS = "| cases | median | 90th percentile | largest | median with sign |"
RULER = "| --- | --- | --- | --- | --- | --- |"

HEAD = """\
# Accuracy: cache bytes from GPU and flags alone

Made by `python -m benchmarks.accuracy --write` from the start-ups in tests/evidence/budgets.json; a test fails when it
is out of date. The error is predicted minus logged cache memory of a rank, in per cent of the memory the GPU shows.
Nothing observed enters a prediction but the card's visible total, where the log prints it.

*Enough flags* means: model, weight format, device and the memory flag are stated, and nothing says that other processes
held memory of the card. The other cases are listed apart: their memory flag is taken at the engine's default.
"""

METHOD = """\
## Method

The budget is each engine's own identity (kvplan/memory/budget.py) over terms that follow from the model and the batch:

- weights of a rank: counted parameters and storage formats, sharded as the engine does; no free parameter;
- activation peak: the larger of one layer over all profiled tokens (so many times the MLP's and the hidden width) and
  the sampling of every sequence's logits over the whole vocabulary (so many bytes a logit), or the vision encoder over
  its largest image;
- CUDA graphs: layers x captured batches, charged since vLLM 0.21;
- process, communication, host side: constants, each with a range.

The constants stand in kvplan/memory/overheads.yaml with their source. Those below are fitted, each by a median over the
cases that show it: two over figures that logs print (sampling, process), the others over what the identity leaves.
Cross-validation leaves out all cases of one source at a time (a thread, or a repository's files), fits anew on the
rest, and predicts those left out.
"""


def percent_error(case: Case, found: Budget) -> float:
    """Signed error in per cent of the GPU's visible memory."""
    return 100 * (found.stages[0].nominal / GIB - case.observed["available_gib"]) / (found.total_bytes / GIB)


def ninetieth(errors: Iterable[float]) -> float:
    """The 90th percentile by the nearest rank."""
    ordered = sorted(errors)
    return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]


def enough(case: Case) -> bool:
    """Whether the case carries enough flags to be held to the target."""
    return case.states_share and case.shared is None


def cross_validated(budgets: Mapping[str, Budget], held: list[Case]) -> dict[str, float]:
    """The error of each case of `held` with all cases of its source left out of the fit."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in held:
        groups[case.group].append(case)
    errors = {}
    for group, left_out in groups.items():
        values = fit([case for case in held if case.group != group], budgets)
        for case in left_out:
            errors[case.id] = percent_error(case, predict(case, figures_for(case, values)))
    return errors


def _row(name: str, errors: list[float]) -> str:
    sizes = [abs(error) for error in errors]
    return (
        f"| {name} | {len(sizes)} | {median(sizes):.1f} % | {ninetieth(sizes):.1f} % | {max(sizes):.1f} % | "
        f"{median(errors):+.1f} % |"
    )


def _table(name: str, errors: Mapping[str, float], held: list[Case], key: Callable[[Case], str]) -> list[str]:
    groups: dict[str, list[float]] = defaultdict(list)
    for case in held:
        groups[key(case)].append(errors[case.id])
    return [
        f"| {name} {COLUMNS}",
        RULER,
        *(_row(group, found) for group, found in sorted(groups.items())),
        _row("all", [errors[case.id] for case in held]),
        "",
    ]


def _family(case: Case) -> str:
    from kvplan.spec.resolve import resolve_model

    spec = resolve_model(case.model).spec
    kinds = {block.kind for block in spec.blocks.values()}
    base = "latent attention" if kinds & {"latent_attention"} else "window" if kinds & {"sliding_window"} else "full"
    base = "recurrent hybrid" if kinds & {"gated_delta", "mamba2", "kda"} else base
    return f"{base}, {'experts' if spec.parameters is not None and spec.parameters.experts else 'dense'}"


def _cases_table(held: list[Case], budgets: Mapping[str, Budget], errors: Mapping[str, float]) -> list[str]:
    lines = [
        "| case | release | logged GiB | predicted GiB | low to high | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in held:
        stage = budgets[case.id].stages[0]
        lines.append(
            f"| {case.id} | {case.engine} {case.version} | {case.observed['available_gib']:.2f} | "
            f"{stage.nominal / GIB:.2f} | {stage.low / GIB:.1f} to {stage.high / GIB:.1f} | {errors[case.id]:+.1f} % |"
        )
    return [*lines, ""]


def _known(case: Case) -> str:
    parts = [part for part in (case.shared, case.note) if part]
    if not case.states_share:
        parts.append("the memory flag is not stated and taken at its default")
    if case.inferred:
        parts.append(f"inferred: {case.inferred}")
    return "; ".join(parts) or "not explained"


def _weights_table(all_cases: list[Case], budgets: Mapping[str, Budget]) -> list[str]:
    lines = ["| case | logged GiB | predicted GiB | error |", "| --- | --- | --- | --- |"]
    for case in all_cases:
        logged = case.observed.get("weights_gib")
        if logged is not None:
            terms = budgets[case.id].stages[0].terms
            found = sum(term.nominal for term in terms if term.name in ("weights", "expert padding")) / GIB
            lines.append(f"| {case.id} | {logged:.2f} | {found:.2f} | {100 * (found / logged - 1):+.1f} % |")
    return [*lines, ""]


def _fit_table(values: Mapping[str, float]) -> list[str]:
    lines = ["| figure | fitted | in use | cases that show it |", "| --- | --- | --- | --- |"]
    for name, figure in FITTED.items():
        lines.append(f"| {figure.says} | {values[name]:.4g} | {figure.in_use():.4g} | {figure.shown_by} |")
    return [*lines, ""]


def _threads() -> list[str]:
    """What became of each collected vLLM thread: by verdict, the unexplained by name, and what has no budget."""
    every, reproduced, budgeted = threads(), planned(), {case.id for case in cases()}
    verdicts = sorted({thread["verdict"] for thread in every})
    lines = ["| verdict on the tokens | threads | reproduced by a test | memory above |", "| --- | --- | --- | --- |"]
    for verdict in verdicts:
        ids = {thread["id"] for thread in every if thread["verdict"] == verdict}
        lines.append(f"| {verdict} | {len(ids)} | {len(ids & reproduced)} | {len(ids & budgeted)} |")
    ids = {thread["id"] for thread in every}
    lines.append(f"| all | {len(ids)} | {len(ids & reproduced)} | {len(ids & budgeted)} |")
    unexplained = [thread["id"] for thread in every if thread["verdict"] == "mismatch_unexplained"]
    share = 100 * len(unexplained) / len(every)
    lines += ["", f"Unexplained: {', '.join(unexplained)}, {share:.1f} % of the threads.", ""]
    lines += ["Memory flag stated, yet no budget:", ""]
    lines += [f"- {thread['id']}: {thread['left_out']}." for thread in every if "left_out" in thread]
    return [*lines, ""]


def document() -> str:
    """The text of docs/accuracy.md."""
    every = cases()
    budgets = {case.id: predict(case) for case in every}
    errors = {case.id: percent_error(case, budgets[case.id]) for case in every}
    held = [case for case in every if enough(case)]
    others = [case for case in every if not enough(case)]
    crossed = cross_validated(budgets, held)
    inside = sum(
        budgets[case.id].stages[0].low <= case.observed["available_gib"] * GIB <= budgets[case.id].stages[0].high
        for case in held
    )
    misses = [case for case in every if abs(errors[case.id]) > MISS_PERCENT]
    lines = [
        HEAD, "## Cases with enough flags", "",
        f"Targets: median {TARGETS[0]:g} %, 90th percentile {TARGETS[1]:g} %.", "",
        f"| {COLUMNS}", RULER,
        _row("fitted on all", [errors[case.id] for case in held]),
        _row("cross-validated", [crossed[case.id] for case in held]), "",
        f"The logged figure lies between low and high in {inside} of {len(held)} cases.", "",
        *_table("engine and release", errors, held, lambda case: case.era),
        *_table("family", errors, held, _family),
        *_cases_table(held, budgets, errors),
        f"## Misses of more than {MISS_PERCENT:g} %, and what is known of them", "",
        *(f"- {case.id} ({errors[case.id]:+.1f} %): {_known(case)}." for case in misses), "",
        "## Cases without enough flags", "", *_table("engine and release", errors, others, lambda case: case.era),
        *_cases_table(others, budgets, errors),
        "## The vLLM threads", "", *_threads(),
        "## Weights of a rank", "", *_weights_table(every, budgets),
        METHOD, *_fit_table(fit(held, budgets)),
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Print, write or check the document."""
    text = document()
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(text, encoding="utf-8")
    elif "--check" in sys.argv[1:]:
        return int(not DOCUMENT.is_file() or DOCUMENT.read_text(encoding="utf-8") != text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
