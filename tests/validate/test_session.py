"""Whole runs: everything passes, a wrong prediction fails, and whatever ends a run early leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvplan.errors import InputError
from kvplan.memory.allocator import AllocatorFigures
from kvplan.spec.resolve import resolve_model
from kvplan.validate import session as session_module
from kvplan.validate.checks import Result
from kvplan.validate.device import OutOfMemory, open_device
from kvplan.validate.engine_pool import EnginePool, ask_engine, engine_checks
from kvplan.validate.groups import PoolGroup, shortened
from kvplan.validate.session import Options, run, steps
from tests.validate.fake_allocator import CachingAllocator, FakeDevice

torch = pytest.importorskip("torch", reason="needs torch")

MIB = 1 << 20
EMPTY = AllocatorFigures(0, 0, 0)
SMALL = shortened(resolve_model("llama-3.1-8b").spec, 1)[0]


@pytest.fixture(scope="module")
def default_run() -> tuple[Result, FakeDevice, int]:
    """`kvplan validate` without a model, on a device that counts as a GPU does."""
    device = FakeDevice(torch, CachingAllocator(4 << 30))
    told: list[str] = []
    result = run(Options(device="cpu", seed=11), told.append, device)
    return result, device, len(told)


def test_the_default_set_passes(default_run: tuple[Result, FakeDevice, int]) -> None:
    result, _, told = default_run
    failed = [check for check in result.checks if check.status == "fail"]
    assert failed == []
    assert result.exit_code == 0
    assert result.verdict.startswith("All ")
    assert told == steps(Options())


def test_the_default_set_covers_gqa_window_mla_and_hybrid(default_run: tuple[Result, FakeDevice, int]) -> None:
    pools = {check.name.split(":")[0] + check.case for check in default_run[0].checks if check.section == "pools"}
    assert pools == {
        "attentionllama-3.1-8b bf16", "localgemma-3-27b-it fp8", "globalgemma-3-27b-it fp8", "mladeepseek-v3 bf16",
        "linearqwen3-next-80b-a3b-instruct bf16", "attentionqwen3-next-80b-a3b-instruct bf16",
    }  # fmt: skip
    attended = {check.case for check in default_run[0].checks if check.section == "attention"}
    models = ("llama-3.1-8b bf16", "gemma-3-27b-it fp8", "deepseek-v3 bf16", "qwen3-next-80b-a3b-instruct bf16")
    assert set(models) < attended


def test_the_allocator_rows_are_judged_in_a_fresh_process(default_run: tuple[Result, FakeDevice, int]) -> None:
    rows = [check for check in default_run[0].checks if check.section == "allocator" and check.judged]
    # 2 figures of 6 first tensors (two are past a quarter of this card's 4 GiB), 3 of each of 4 models
    assert len(rows) == 6 * 2 + 4 * 3
    assert {check.status for check in rows} == {"pass"}


def test_a_run_leaves_the_device_as_found(default_run: tuple[Result, FakeDevice, int]) -> None:
    result, device, _ = default_run
    assert device.allocator() == EMPTY
    rows = [check for check in result.checks if check.section == "device" and "after the run" in check.name]
    assert [(check.predicted, check.measured, check.status) for check in rows] == [(0, 0, "pass")] * 2


def test_a_cpus_speed_is_reported_and_not_judged(default_run: tuple[Result, FakeDevice, int]) -> None:
    rows = [check for check in default_run[0].checks if check.section in ("bandwidth", "products", "host link")]
    assert {check.status for check in rows} == {"info", "skipped"}
    assert sum("held out" in check.name for check in rows) == 2
    profile = default_run[0].profile
    assert profile is not None
    assert profile.kind == "cpu" and profile.copy_bytes_per_second > 0 and profile.links == ()


@pytest.mark.usefixtures("quick")
def test_a_wrong_prediction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = PoolGroup.bytes
    monkeypatch.setattr(PoolGroup, "bytes", lambda self, blocks: honest(self, blocks) + (1 if blocks > 1 else 0))
    result = run(Options(model=SMALL, device="cpu", pool=4 * MIB, seed=1))
    assert result.exit_code == 1
    assert "1 of " in result.verdict and "FAILED" in result.verdict and "pools / llama-3.1-8b" in result.verdict


@pytest.mark.usefixtures("quick")
def test_a_leak_fails(fake_device: Callable[..., FakeDevice], monkeypatch: pytest.MonkeyPatch) -> None:
    device, kept = fake_device(), []
    honest = session_module.capacity_checks

    def leaking(*arguments: object, **named: object) -> object:
        kept.append(device.empty((3, MIB), "uint8"))
        return honest(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(session_module, "capacity_checks", leaking)
    result = run(Options(model=SMALL, device="cpu", pool=4 * MIB), device=device)
    failed = [check for check in result.checks if check.status == "fail"]
    assert [(check.name, check.measured) for check in failed] == [
        ("allocated after the run", 3 * MIB), ("reserved after the run", 20 * MIB)
    ]  # fmt: skip


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("at", [1, 3, 4, 5, 6, 8])
def test_an_interrupt_anywhere_frees_everything(at: int, fake_device: Callable[..., FakeDevice]) -> None:
    device, told = fake_device(), []

    def tick(text: str) -> None:
        told.append(text)
        if len(told) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(Options(model=SMALL, device="cpu", pool=4 * MIB, engine="vllm"), tick, device)
    del caught
    device.release()
    assert device.allocator() == EMPTY


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("at", [1, 4, 5, 7, 9, 14, 20])
def test_running_out_of_memory_anywhere_frees_everything(at: int, fake_device: Callable[..., FakeDevice]) -> None:
    device = fake_device()
    device.memory.fail_at = at
    with pytest.raises(OutOfMemory, match="expected a smaller pool") as caught:
        run(Options(model=SMALL, device="cpu", pool=4 * MIB), device=device)
    del caught
    device.release()
    assert device.allocator() == EMPTY


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(fraction=1.5), "--fraction: found 1.5, expected a share above 0 and at most 1"),
        (Options(fraction=0.0), "--fraction: found 0"),
        (Options(fraction=float("nan")), "--fraction: found nan"),
        (Options(fraction=0.5, pool=MIB), "--fraction: found it together with --pool"),
        (Options(block_size=0), "--block-size: found 0"),
        (Options(pool=1 << 50), r"--pool: found 1,024 TiB .*expected at most the 1\.0+ GiB .*on fake card"),
        (Options(model=SMALL, pool=1), "--pool: found 1 B, but one request"),
        (Options(model=SMALL, kv_cache_dtype="q8_0"), "--kv-cache-dtype: found q8_0"),
        (Options(model=SMALL, engine="vlm"), "--engine: found 'vlm', expected one of vllm"),
    ],
)
def test_what_cannot_run_is_one_sentence(
    options: Options, message: str, fake_device: Callable[..., FakeDevice]
) -> None:
    device = fake_device(1 << 30)
    with pytest.raises(InputError, match=message) as caught:
        run(options, device=device)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    del caught
    device.release()
    assert device.allocator() == EMPTY


def test_vllms_pool_for_llama() -> None:
    """By hand: vLLM's CPU backend takes blocks of 128 tokens, 16 MiB each over 32 layers of 4 KiB a token; 80 MiB are 5
    of them, one is the null block, so that 512 tokens fit once and 256 twice."""
    device = open_device("cpu")
    spec = resolve_model("llama-3.1-8b").spec
    for length, requests in ((512, 1), (256, 2)):
        answer = ask_engine("vllm@0.32", spec, 80 * MIB, device.facts(), {}, length)
        with EnginePool(device, answer) as pool:
            assert len(pool.tensors) == 32
            rows = list(engine_checks(pool, "m", torch.Generator().manual_seed(1)))
        assert [(row.predicted, row.measured) for row in rows if row.judged] == [
            (80 * MIB, 80 * MIB), (requests, requests), (4, 4), (0, 0)
        ]  # fmt: skip


def test_an_engine_that_refuses_says_why() -> None:
    device = open_device("cpu")
    with pytest.raises(InputError, match="with which vllm refuses to start"):
        ask_engine("vllm", resolve_model("gemma-3-27b").spec, MIB, device.facts(), {})


def test_llama_cpps_cells_are_held_to_their_bytes() -> None:
    device = open_device("cpu")
    spec = resolve_model("llama-3.1-8b").spec
    answer = ask_engine("llama.cpp", spec, 1 << 30, device.facts(), {}, 512)
    with EnginePool(device, answer) as pool:
        rows = list(engine_checks(pool, "m", torch.Generator().manual_seed(1)))
    # 512 cells x 32 layers x 8 heads x 128 x (K + V) x 2 B, by hand; one request of 512 tokens fills them
    assert [(row.predicted, row.measured) for row in rows if row.judged] == [
        (64 * MIB, 64 * MIB), (1, 1), (512, 512), (0, 0)
    ]  # fmt: skip


@pytest.mark.gpu
def test_the_default_set_passes_on_a_gpu() -> None:
    result = run(Options(device="cuda:0", pool=512 * MIB))
    assert [check for check in result.checks if check.status == "fail"] == []
