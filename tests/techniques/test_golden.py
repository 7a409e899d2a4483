"""All 97 golden cases through kvplan's public functions (sources stand in tests/golden/techniques.yaml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.techniques import golden_checkpoint, golden_runtime  # noqa: F401  (they register their cases)
from tests.techniques.golden_case import answer

GOLDEN = yaml.safe_load((Path(__file__).parents[1] / "golden" / "techniques.yaml").read_text())


def test_no_case_is_missing() -> None:
    assert len(GOLDEN["cases"]) == GOLDEN["count"] == 97


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    found = answer(case["id"], case["inputs"])
    for name, expected in case["expected"].items():
        if case["match"] != "exact":
            assert found[name] == pytest.approx(expected, rel=case["match"]["rel"]), name
        elif isinstance(expected, int):
            assert found[name] == expected, name
        else:
            assert round(found[name], 6) == expected, name
    for name, published in case.get("published", {}).items():
        assert found[name] == pytest.approx(published["value"], rel=published["rel_tol"] or 1e-12), name
