"""Links by hand, tiers, and what happens to blocks on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.performance.reads import TICKS
from kvplan.simulator.build import build
from kvplan.simulator.engine import Engine
from kvplan.simulator.request import FOREVER, Request
from kvplan.simulator.result import summary
from kvplan.simulator.scenario import parse_scenario
from kvplan.simulator.tiers import Link, Store, Tiers


@pytest.mark.parametrize(("size", "rate", "seconds"), [(40e9, 87e9, 0.460), (40e9, 190e9, 0.211)])
def test_a_lone_transfer_takes_latency_and_bytes_over_bandwidth(size: float, rate: float, seconds: float) -> None:
    link = Link(rate, 0.0)
    link.start(0, 1, size)
    assert link.next_time() / TICKS == pytest.approx(seconds, abs=5e-4)
    late = Link(rate, 0.003)
    late.start(0, 1, size)
    assert late.next_time() / TICKS == pytest.approx(0.003 + size / rate, rel=1e-9)


def test_two_equal_transfers_take_twice_as_long_each() -> None:
    link = Link(1e9, 0.001)
    link.start(0, 1, 5e8)
    link.start(0, 2, 5e8)
    end = link.next_time()
    assert end / TICKS == pytest.approx(0.001 + 2 * 0.5, rel=1e-9)
    assert link.ended(end) == [1, 2]
    assert link.next_time() == FOREVER


def test_a_late_transfer_shares_only_while_it_runs() -> None:
    """1 GB/s: A (1 GB) alone for 0.5 s, then beside B (0.25 GB): B ends at 1.0 s, A at 1.25 s."""
    link = Link(1e9)
    link.start(0, 1, 1e9)
    link.start(TICKS // 2, 2, 2.5e8)
    end = link.next_time()
    assert end / TICKS == pytest.approx(1.0, rel=1e-9)
    assert link.ended(end) == [2]
    end = link.next_time()
    assert end / TICKS == pytest.approx(1.25, rel=1e-9)
    assert link.ended(end) == [1]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.floats(1, 3e9)), min_size=1, max_size=6))
def test_a_link_is_never_faster_than_its_bandwidth(transfers) -> None:
    """The last of several transfers ends when all bytes have crossed: work is conserved."""
    link, done, clock = Link(1e9), [], 0
    moves = sorted((round(at * TICKS), size) for at, size in transfers)
    busy_until = 0.0
    for at, size in moves:
        busy_until = max(busy_until, at / TICKS) + size / 1e9
    for number, (at, size) in enumerate(moves):
        while link.next_time() <= at:
            clock = link.next_time()
            done += link.ended(clock)
        link.start(at, number, size)
    while (end := link.next_time()) != FOREVER:
        clock = end
        done += link.ended(end)
    assert sorted(done) == list(range(len(moves)))
    assert clock / TICKS == pytest.approx(busy_until, rel=1e-6, abs=1e-9)


def sessions(**changes: Any) -> tuple[dict[str, Any], Any]:
    document: dict[str, Any] = {
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100"},
        "engine": {"max_model_len": 16384, "max_num_batched_tokens": 2048, "num_blocks": 1200},
        "workload": {
            "arrivals": {"rate": 0.5}, "requests": 120,
            "prompt": {"kind": "uniform", "low": 500, "high": 1500}, "output": 80,
            "sessions": {"turns": 5, "idle": 10},
        },
        "tiers": [{"capacity": "100GB", "bandwidth": "25GB/s"}],
        "seed": 3,
    }  # fmt: skip
    document.update(changes)
    scenario = parse_scenario(document, "test")
    built = build(scenario, Path())
    return {"built": built}, (scenario, built)


def store(name: str, capacity: int, rate: float, **settings: Any) -> Store:
    return Store(name, capacity, 1000, Link(rate), **settings)


def test_what_a_tier_drops_goes_to_the_next_that_keeps_evicted_blocks() -> None:
    """CPU holds 10 blocks, NVMe 100: of keys a, b, c of 4 blocks each the oldest moves on and is found there."""
    tiers = Tiers([store("cpu", 10, 1e6), store("nvme", 100, 1e5, write_through=False)])
    for key in "abc":
        tiers.finished(key, 4)
    cpu, nvme = tiers.stores
    assert [cpu.holds(key) for key in "abc"] == [0, 4, 4]
    assert [nvme.holds(key) for key in "abc"] == [4, 0, 0]
    request = Request(1, 0, 12 * 16 + 1, 1, keys=("a", "b", "x"), ends=(64, 128, 193))
    assert tiers.beyond(request, [], 0, 16, 192) == [4, 4]


def test_a_load_from_two_tiers_ends_with_the_slower() -> None:
    """4 blocks of 1,000 B at 1 MB/s are 4 ms, at 100 kB/s 40 ms; both links work at once."""
    tiers = Tiers([store("cpu", 10, 1e6), store("nvme", 100, 1e5)])
    request = Request(7, 0, 200, 1)
    tiers.begin(0, request, [4, 4])
    assert tiers.next_time() / TICKS == pytest.approx(0.004)
    assert tiers.done(tiers.next_time()) == []
    assert tiers.next_time() / TICKS == pytest.approx(0.040)
    assert tiers.done(tiers.next_time()) == [request]
    assert not tiers.loading


def test_pinned_buffers_bound_what_is_under_way() -> None:
    """6,000 B of buffers: two loads of 4 blocks of 1,000 B don't go together, a single one of 9 goes alone."""
    tiers = Tiers([store("cpu", 100, 1e6, pinned=6000)])
    assert tiers.admits([9])
    tiers.begin(0, Request(1, 0, 100, 1), [4])
    assert tiers.admits([2])
    assert not tiers.admits([4])
    tiers.done(tiers.next_time())
    assert tiers.admits([4])


CHAIN = [{"capacity": "4GB", "bandwidth": "25GB/s"},
         {"name": "nvme", "capacity": "100GB", "bandwidth": "5GB/s", "write": "on_eviction"}]  # fmt: skip


def test_a_second_tier_finds_what_the_first_had_no_room_for() -> None:
    found = {}
    for name, tiers in {"one": CHAIN[:1], "two": CHAIN}.items():
        _, (scenario, built) = sessions(tiers=tiers)
        built.simulation.run()
        found[name] = summary(built, scenario, "test")
    one, two = found["one"], found["two"]
    assert [tier["name"] for tier in two["tiers"]] == ["cpu", "nvme"]
    assert all(tier["loads"] > 0 for tier in two["tiers"])
    assert all(tier["stored_blocks"] <= tier["capacity_blocks"] for tier in two["tiers"])
    assert two["tiers"][0]["capacity_blocks"] == 4 * 10**9 // 2**21  # blocks of 2 MiB
    assert two["prefix_cache"]["hit_rate_tokens"] > one["prefix_cache"]["hit_rate_tokens"] + 0.05


@pytest.mark.parametrize("write", ["through", "on_eviction"])
@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu"])
def test_no_block_is_lost_with_tiers_and_policies(write: str, policy: str, monkeypatch) -> None:
    _, (scenario, built) = sessions(
        tiers=[{"capacity": "4GB", "bandwidth": "25GB/s", "write": write, "pinned": "256MB"}, CHAIN[1]],
        engine={"max_model_len": 16384, "num_blocks": 1200, "eviction_policy": policy},
    )
    plain = Engine.advance

    def checked(engine: Engine, limit: int) -> None:
        plain(engine, limit)
        engine.check()

    monkeypatch.setattr(Engine, "advance", checked)
    built.simulation.run()
    result = summary(built, scenario, "test")
    assert result["requests"]["finished"] == 120
    assert result["tiers"][0]["loads"] > 0
    [replica] = built.replicas
    assert replica.pool.available == replica.pool.total


def test_a_tier_gives_back_only_what_was_put_there() -> None:
    """Bytes loaded are whole blocks of tokens that hit, and no prompt hits more than it has before its last token."""
    _, (scenario, built) = sessions()
    seen = []
    built.metrics.on_request = seen.append
    built.simulation.run()
    result = summary(built, scenario, "test")
    assert all(request.hit_tokens + request.tier_tokens < request.prompt for request in seen)
    first_turns = [request for request in seen if request.turn == 0]
    assert all(request.tier_tokens == 0 for request in first_turns)
    loaded = result["tiers"][0]["loaded_bytes"]
    assert loaded % result["pool"]["block_bytes"] == 0
    assert loaded >= result["prefix_cache"]["tier_hit_tokens"] // 16 * result["pool"]["block_bytes"] > 0


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["round_robin", "least_loaded", "prefix_aware"]), st.integers(2, 4))
def test_every_request_is_served_whatever_the_routing(seed, routing, replicas) -> None:
    _, (_, built) = sessions(seed=seed, routing=routing, replicas=replicas, tiers=[], failure={"time": 30})
    built.simulation.run()
    assert built.metrics.finished == 120
    assert not any(replica.busy for replica in built.replicas)
    assert all(r.pool.available == r.pool.total for r in built.replicas[1:])


def test_disaggregation_pays_for_the_transfer() -> None:
    """One request of 1,000 tokens: 63 blocks of 2 MiB over 1 GB/s is 0.132 s between its first and second token."""
    document = {
        "model": "llama-3.1-8b", "hardware": {"gpu": "h100"}, "engine": {"max_model_len": 4096},
        "workload": {"arrivals": {"kind": "at_once"}, "requests": 1, "prompt": 1000, "output": 2},
        "disaggregation": {"prefill": 1, "decode": 1, "bandwidth": "1GB/s", "latency": "1ms"},
    }  # fmt: skip
    built = build(parse_scenario(document, "test"), Path())
    built.simulation.run()
    gap = built.metrics.tpot.mean
    steps = gap - 0.001 - 63 * 2097152 / 1e9
    assert 0 < steps < 0.03
