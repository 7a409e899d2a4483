"""Each question's answer: the record whose fields are the JSON document."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvplan.questions.asking import (
    available,
    cache_options,
    engine_flags,
    estimate_arguments,
    find_model,
    techniques,
)
from kvplan.questions.checks import Checked, CheckQuestion, answer_check
from kvplan.questions.command import cli_command
from kvplan.questions.models import (
    AuditQuestion,
    Command,
    CompareQuestion,
    EstimateQuestion,
    ExplainQuestion,
    MatrixQuestion,
)
from kvplan.record import record

if TYPE_CHECKING:
    from pydantic import BaseModel

    from kvplan.answers.compare import Comparison
    from kvplan.answers.explain import Explanation
    from kvplan.answers.tables import Matrix
    from kvplan.estimator import Estimate
    from kvplan.evidence.audit import Audit

MOST_CURVES = 8


@record
class Question:
    """One kind of question: its name, what it is for, the model it is validated by, the answer's class, the function.

    `answers` are the classes an answer may have, `is_quick` tells a question that takes less than handing it to another
    thread would.
    """

    name: str
    title: str
    asked: type[BaseModel]
    answers: Callable[[], tuple[type, ...]]
    answer: Callable[[Any], Any]
    body_limit: int = 256 << 10
    is_quick: Callable[[Any], bool] = lambda question: False


def answer_estimate(question: EstimateQuestion) -> Estimate:
    """The analytic answer, or with an engine that engine's plan."""
    loaded = find_model(question.model, question.config, question.assume_dense)
    asked = estimate_arguments(question)
    if question.engine is None:
        from kvplan.estimator import estimate

        return estimate(loaded, **asked, ctx=question.ctx, gpu=question.gpu, num_gpus=question.num_gpus)
    from kvplan.served import analytic_dtype, estimate_served

    settings = engine_flags(question)
    asked["kv_cache_dtype"] = analytic_dtype(settings, question.kv_cache_dtype)
    return estimate_served(
        loaded, engine=question.engine, gpu=question.gpu, settings=settings, available_bytes=available(question),
        **asked,
    )  # fmt: skip


def answer_explain(question: ExplainQuestion) -> Explanation:
    """The waterfall."""
    from kvplan.answers.explain import explain

    loaded = find_model(question.model, question.config, question.assume_dense)
    return explain(loaded, ctx=question.ctx, options=cache_options(question))


def answer_compare(question: CompareQuestion) -> Comparison:
    """Models under settings; curves for a handful of rows."""
    from kvplan.answers.compare import compare
    from kvplan.errors import InputError

    models = [find_model(name, None, False) for name in question.models]
    if question.config is not None:
        models.append(find_model(None, question.config, question.assume_dense))
    if not models:
        raise InputError("models: found nothing, expected the names of known models or a config.json in `config`")
    options, wanted = cache_options(question), question.curves
    found = compare(models, question.contexts, options=options, vary=question.vary, sort=question.sort)
    if not wanted:
        return found
    if len(found.rows) > MOST_CURVES:
        raise InputError(f"curves: found {len(found.rows)} rows, expected at most {MOST_CURVES} to draw")
    return compare(models, question.contexts, options=options, vary=question.vary, sort=question.sort, curves=True)


def answer_matrix(question: MatrixQuestion) -> Matrix:
    """Sizes over contexts and batches."""
    from kvplan.answers.tables import matrix

    loaded = find_model(question.model, question.config, question.assume_dense)
    settings = {} if question.engine is None else engine_flags(question)
    contexts, batches = (",".join(map(str, values)) for values in (question.contexts, question.batches))
    return matrix(
        loaded, (f"ctx={contexts}", f"batch={batches}"), question.engine, question.gpu, question.num_gpus, settings,
        estimate_arguments(question), available(question),
    )  # fmt: skip


def answer_audit(question: AuditQuestion) -> Audit:
    """What a start-up log says. No file or address that it names is opened."""
    from io import BytesIO

    from kvplan.evidence.ask import Given
    from kvplan.evidence.audit import audit
    from kvplan.evidence.reader import read_log
    from kvplan.hardware.accelerators import find

    named = question.model or question.config
    loaded = find_model(question.model, question.config, question.assume_dense) if named else None
    device = None if question.gpu is None else find(question.gpu)
    own = {name.lstrip("-").replace("-", "_"): value for name, value in question.settings.items()}
    runs = read_log(BytesIO(question.log.encode("utf-8", errors="replace")))
    return audit(runs, Given(loaded, device, None, question.engine, own), question.run)


def answer_command(question: EstimateQuestion) -> Command:
    """The same question for a terminal."""
    return Command(cli=cli_command(question))


def _is_plain(question: EstimateQuestion) -> bool:
    """An analytic estimate of a known model without techniques: well below a millisecond."""
    composed = (question.engine, question.config, question.generated, question.what_if or None)
    return not any(value is not None for value in composed) and not techniques(question)


def _estimate_classes() -> tuple[type, ...]:
    from kvplan.estimator import Estimate
    from kvplan.served import ServedEstimate

    return (ServedEstimate, Estimate)


def _explain_classes() -> tuple[type, ...]:
    from kvplan.answers.explain import Explanation

    return (Explanation,)


def _compare_classes() -> tuple[type, ...]:
    from kvplan.answers.compare import Comparison

    return (Comparison,)


def _matrix_classes() -> tuple[type, ...]:
    from kvplan.answers.tables import Matrix

    return (Matrix,)


def _audit_classes() -> tuple[type, ...]:
    from kvplan.evidence.audit import Audit

    return (Audit,)


QUESTIONS = (
    Question(
        "estimate", "How much KV cache a model needs, and what a device and an engine make of it.",
        EstimateQuestion, _estimate_classes, answer_estimate, is_quick=_is_plain,
    ),
    Question(
        "explain", "Where the bytes went: from plain MHA in 16 bits, one technique at a time, to what is stored.",
        ExplainQuestion, _explain_classes, answer_explain,
    ),
    Question(
        "compare", "Models and settings side by side over several contexts.",
        CompareQuestion, _compare_classes, answer_compare,
    ),
    Question(
        "matrix", "Cache sizes over contexts and batches, and the greatest concurrency.",
        MatrixQuestion, _matrix_classes, answer_matrix,
    ),
    Question(
        "audit", "What an engine's start-up log says: where the memory went, what to change.",
        AuditQuestion, _audit_classes, answer_audit, 4 << 20,
    ),
    Question(
        "check", "Whether expectations hold, and the smallest change that makes a failed one pass.",
        CheckQuestion, lambda: (Checked,), answer_check,
    ),
    Question(
        "command", "The same question as a command of the `kvplan` command line.",
        EstimateQuestion, lambda: (Command,), answer_command, is_quick=lambda question: True,
    ),
)  # fmt: skip
