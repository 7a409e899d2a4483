"""A question as the command line that asks it."""

from __future__ import annotations

import shlex
from typing import Any

from kvplan.questions.asking import CONFIG_NAME
from kvplan.questions.models import EstimateQuestion

_UNSPELLED = frozenset({"model", "config", "assume_dense", "settings", "skip_layers", "what_if"})


def cli_command(question: EstimateQuestion) -> str:
    """The `kvplan estimate` command of a question; a pasted config is taken to be saved as config.json.

    Only what differs from the defaults is spelled out.
    """
    model = CONFIG_NAME if question.config is not None else question.model or "MODEL"
    words = ["kvplan", "estimate", model]
    for name, field in type(question).model_fields.items():
        value = getattr(question, name)
        if name not in _UNSPELLED and value not in (None, field.default):
            words += _option(name, value)
    if question.skip_layers:
        words += ["--kv-cache-dtype-skip-layers", ",".join(map(str, question.skip_layers))]
    for text in question.what_if:
        words += ["--what-if", text]
    for name, value in question.settings.items():
        words += _option(name, value)
    if question.assume_dense:
        words += ["--assume", "dense"]
    return " ".join(shlex.quote(word) for word in words)


def _option(name: str, value: Any) -> list[str]:
    flag = f"--{name.lstrip('-').replace('_', '-')}"
    if value is True:
        return [flag]
    return [] if value is False else [flag, str(value)]
