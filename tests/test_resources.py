"""The shipped data folders are found, and a broken installation says what is missing."""

from __future__ import annotations

import pytest

from kvplan.errors import InputError
from kvplan.resources import data_dir


def test_model_specs_are_found() -> None:
    folder = data_dir("model_specs")
    assert folder.name == "model_specs"
    assert folder.is_dir()


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(InputError, match="'no_such_data'"):
        data_dir("no_such_data")
