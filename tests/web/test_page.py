"""The page in a real browser: the main paths, what goes wrong, and that everyone can use it."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvplan import units
from tests.evidence_audit.log_text import vllm_cases, vllm_log
from tests.web.browser import browser_context
from tests.web.conftest import Site

pytestmark = pytest.mark.browser
CONFIGS = Path(__file__).parents[1] / "golden" / "configs"
SETTLED = "body[data-settled]"


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from browser_context(tmp_path_factory.mktemp("chromium"))


@pytest.fixture
def page(context: Any, site: Site) -> Iterator[Any]:
    """A page that has answered its first question; whatever the console says fails the test."""
    opened = context.new_page()
    said: list[str] = []
    opened.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.expected = said
    opened.goto(site.url)
    opened.wait_for_selector(SETTLED)
    yield opened
    opened.close()
    assert said == []


def fill(page: Any, **values: str) -> None:
    """Change fields and wait for the last answer's pictures."""
    for name, value in values.items():
        field = page.locator(f"#{name}")
        if field.evaluate("element => element.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.wait_for_function("() => document.body.dataset.settled === location.hash")


def refused(page: Any) -> str:
    page.wait_for_selector("#error:not([hidden])")
    # The browser itself reports the refused request on the console.
    page.expected[:] = [text for text in page.expected if "422" not in text]
    return str(page.inner_text("#error"))


def test_the_first_answer(page: Any) -> None:
    # 80 layers x 131,072 entries x 2 x 8 KV heads x 128 x 2 B = 40 GiB.
    verdict = page.inner_text("#verdict")
    assert "40.00 GiB (42.95 GB)" in verdict
    assert "fits on 8 x H100" in verdict
    assert page.locator("#memory svg rect").count() >= 3
    assert page.locator("#waterfall svg").count() == 1
    assert page.locator("#curve svg path").count() == 1
    assert page.locator("#matrix tbody tr").count() == 5
    assert page.inner_text("#commands pre") == "kvplan estimate llama-3.1-70b --ctx 128k --gpu h100 --num-gpus 8"


def test_a_change_is_answered_at_once_and_kept_in_the_address(page: Any, context: Any, site: Site) -> None:
    fill(page, kv_cache_dtype="fp8", ctx="64k")
    assert "10.00 GiB (10.74 GB)" in page.inner_text("#verdict")
    assert "ctx=64k" in page.url
    again = context.new_page()
    again.goto(page.url)
    again.wait_for_selector(SETTLED)
    assert again.inner_text("#verdict") == page.inner_text("#verdict")
    assert again.input_value("#ctx") == "64k"
    again.close()


def test_an_engine_gives_its_plan_and_its_command(page: Any) -> None:
    fill(page, engine="vllm", ctx="32k")
    assert "vllm" in page.inner_text("#verdict")
    assert "KV cache" in page.inner_text("#memory")
    commands = page.locator("#commands pre").all_inner_texts()
    assert commands[1].startswith("vllm serve meta-llama/")
    assert page.locator("#evict").is_disabled()
    page.get_by_text("Parallelism and flags").click()
    fill(page, tensor_parallel_size="4", settings="enforce-eager=true")
    assert "--enforce-eager" in page.locator("#commands pre").first.inner_text()


def test_what_does_not_fit_is_said_in_words(page: Any) -> None:
    fill(page, num_gpus="1")
    assert "does NOT fit" in page.inner_text("#verdict")
    assert page.get_attribute("#verdict", "class") == "bad"


def test_techniques_show_in_the_waterfall(page: Any) -> None:
    fill(page, evict="snapkv:2048", what_if="cla=2")
    assert page.locator("#waterfall tbody tr").count() == 4
    page.get_by_text("Start over").click()
    page.wait_for_function("() => document.body.dataset.settled === ''")
    assert page.input_value("#evict") == ""


def test_a_pasted_config(page: Any) -> None:
    config = (CONFIGS / "01-ai--yi-34b.json").read_text()
    page.get_by_text("Paste a config.json instead").click()
    fill(page, config=config, ctx="4k", gpu="")
    # Yi-34B's config.json: 60 layers x 4,096 entries x 2 x 8 KV heads x 128 x 2 B.
    shown = page.inner_text("#verdict")
    assert units.both(60 * 4096 * 2 * 8 * 128 * 2) in shown
    assert page.inner_text("#commands pre").startswith("kvplan estimate config.json")


def test_an_invalid_config_is_one_sentence_at_its_field(page: Any) -> None:
    page.get_by_text("Paste a config.json instead").click()
    page.fill("#config", "{not json")
    assert "config.json: found something that is no JSON" in refused(page)
    assert page.get_attribute("#config", "aria-invalid") == "true"
    page.fill("#config", json.dumps({"model_type": "nobody"}))
    page.wait_for_selector('#error:has-text("the architecture isn\'t known")')
    refused(page)
    fill(page, config="")
    page.wait_for_selector("#error", state="hidden")
    assert page.get_attribute("#config", "aria-invalid") is None


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("ctx", "lots", "--ctx: found 'lots'"),
        ("batch", "-3", "batch: found '-3'"),
        ("gpu", "h1000", "unknown device 'h1000'"),
        ("model", "lama-3.1-70b", "nearest: llama-3.1-70b"),
        ("kv_cache_dtype", "fp9", "fp9"),
    ],
)
def test_a_wrong_value_is_one_sentence_at_its_field(page: Any, name: str, value: str, sentence: str) -> None:
    page.fill(f"#{name}", value)
    assert sentence in refused(page)
    assert page.get_attribute(f"#{name}", "aria-invalid") == "true"
    assert page.inner_text("#verdict") == "Not answered."


def test_names_from_a_file_are_text_and_never_markup(page: Any) -> None:
    page.get_by_text("Paste a config.json instead").click()
    config = json.loads((CONFIGS / "01-ai--yi-34b.json").read_text())
    config["architectures"] = ["<img src=x onerror=alert(1)>"]
    page.fill("#config", json.dumps(config))
    page.wait_for_timeout(300)
    assert page.locator("#results img").count() == 0
    page.expected[:] = [text for text in page.expected if "422" not in text]


def test_a_log_is_explained(page: Any) -> None:
    case = next(case for case in vllm_cases() if case["id"] == "v0-llama31-8b-3090-29k-fail")
    page.get_by_role("tab", name="Check a log").click()
    page.fill("#log", vllm_log(case))
    page.get_by_role("button", name="Check it").click()
    page.wait_for_selector("#audit-answer .verdict")
    assert "refused to start" in page.inner_text("#audit-answer .verdict")
    assert page.locator("#audit-answer .finding").count() >= 1
    page.fill("#log", "nothing here")
    page.get_by_role("button", name="Check it").click()
    page.wait_for_selector("#audit-error:not([hidden])")
    assert "found no start of an engine" in page.inner_text("#audit-error")
    page.expected[:] = [text for text in page.expected if "422" not in text]


def test_the_keyboard_reaches_everything(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "tab-plan"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("() => document.activeElement.id") == "tab-log"
    assert page.is_visible("#log")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    assert page.get_attribute("html", "data-theme") == "dark"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") == "model"


def test_sizes_are_printed_as_kvplan_prints_them(page: Any) -> None:
    counts = [
        0,
        1,
        584,
        1023,
        1024,
        1_048_575,
        19_660_800,
        10**9,
        42_949_672_960,
        43_046_721_000,
        10**12,
        10**13,
        2**50,
    ]
    script = "async (counts) => { const m = await import('/format.js'); return counts.map(m.both); }"
    assert page.evaluate(script, counts) == [units.both(count) for count in counts]


@pytest.mark.parametrize(
    ("look", "width", "question"),
    [
        ("light", 1280, ""), ("dark", 360, ""), ("light", 360, "engine=vllm&ctx=32k"),
        ("dark", 1280, "engine=vllm&ctx=32k"), ("light", 1280, "ctx=lots"), ("dark", 360, "ctx=lots"),
    ],
)  # fmt: skip
def test_accessibility(page: Any, site: Site, look: str, width: int, question: str) -> None:
    page.emulate_media(color_scheme=look)
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{site.url}/#{question}")
    page.reload()
    page.wait_for_selector("#error:not([hidden])" if "lots" in question else SETTLED)
    page.expected[:] = [text for text in page.expected if "422" not in text]
    page.evaluate(importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text())
    found = page.evaluate("() => axe.run()")
    serious = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
    assert found["passes"]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_a_change_is_answered_within_the_time_a_person_notices(page: Any) -> None:
    times = []
    for context in ("16k", "24k", "32k", "40k", "48k", "56k", "64k"):
        fill(page, ctx=context)
        times.append(int(page.get_attribute("body", "data-milliseconds")))
    # The quickest, since the machine that runs the tests has other work too.
    assert min(times) <= 50, times


def test_nothing_comes_from_elsewhere(context: Any, site: Site) -> None:
    asked: list[str] = []
    opened = context.new_page()
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(site.url)
    opened.wait_for_selector(SETTLED)
    opened.close()
    assert asked
    assert [url for url in asked if not re.match(rf"{re.escape(site.url)}/", url)] == []
