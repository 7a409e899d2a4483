"""Expectations about known models, judged as `kvplan check` judges those of a file. No file is read for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kvplan.check.expectations import Expectation
from kvplan.check.verdicts import Verdict
from kvplan.errors import InputError
from kvplan.questions.asking import find_model
from kvplan.questions.models import Count, Flag, Ranks, Text, Tokens
from kvplan.spec.resolve import LoadedModel

#: what errors and verdicts call the place of an expectation
PLACE = "expectations"


class Expected(BaseModel):
    """What is served on what, and what must hold."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    model: Annotated[str, Field(min_length=1, max_length=200)]
    expect: list[Annotated[str, Field(min_length=1, max_length=400)]] = Field(
        min_length=1, max_length=10, description="Sentences such as 'fits' or 'max_concurrency >= 8 at 32k'."
    )
    engine: Text | None = None
    flags: dict[Text, Flag] = Field({}, max_length=64, description="The engine's flags, by its own names.")
    gpu: Text | None = None
    num_gpus: Ranks | None = None
    available_memory: Text | None = None
    ctx: Tokens | None = None
    batch: Count = 1
    kv_cache_dtype: Text = "auto"


class CheckQuestion(BaseModel):
    """Expectations that must hold."""

    model_config = ConfigDict(extra="forbid", strict=True)

    expectations: list[Expected] = Field(min_length=1, max_length=20)


class Checked(BaseModel):
    """The document of `kvplan check --json`; `line` counts the expectations from 1."""

    schema_version: int
    command: Literal["check"]
    verdict: str
    exit_code: int
    strict: bool
    files: tuple[str, ...]
    counts: dict[str, int]
    verdicts: tuple[Verdict, ...]


def answer_check(question: CheckQuestion) -> Checked:
    """One verdict for each sentence. Raises InputError for an unknown model and a sentence that is none."""
    from kvplan.check.expectations import Placed
    from kvplan.check.inputs import Inputs
    from kvplan.check.judge import Judge
    from kvplan.check.metrics import parse_condition
    from kvplan.check.request import Given
    from kvplan.check.subjects import Reader, Subject
    from kvplan.check.verdicts import Report

    class KnownModels(Reader):
        """Looks models up by name alone."""

        def load(self, subject: Subject) -> LoadedModel:
            return find_model(subject.model, None, False)

    judge = Judge(KnownModels(Given(), Inputs()), None, False)
    verdicts: list[Verdict] = []
    for number, asked in enumerate(question.expectations, 1):
        find_model(asked.model, None, False)
        conditions = tuple(parse_condition(text, f"{PLACE} {number}: expect") for text in asked.expect)
        for condition in conditions:
            if condition.metric is None or condition.metric.source == "scenario":
                raise InputError(
                    f"{PLACE} {number}: expect: found {condition.text!r}, which needs a file, expected a figure of the "
                    "model or the engine (kvplan check reads files)"
                )
        placed = Placed(_expectation(asked), conditions, Path(PLACE), number, {}, (number,) * len(conditions))
        verdicts += judge.judge(placed).verdicts
    return Checked.model_validate(Report(tuple(verdicts), ()).to_dict())


def _expectation(asked: Expected) -> Expectation:
    fields: dict[str, Any] = asked.model_dump(exclude={"gpu", "num_gpus"}, exclude_none=True)
    if asked.gpu is not None:
        fields["hardware"] = {"gpu": asked.gpu, "count": asked.num_gpus}
    elif asked.num_gpus is not None:
        raise InputError("num_gpus: found it without gpu, expected the device beside it")
    return Expectation.model_validate(fields)
