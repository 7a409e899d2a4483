"""Prefix replay against golden counts, an obvious LRU, and the true optimum of tiny traces."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.simulator.replay import replay
from kvplan.simulator.traces import open_trace

GOLDEN = Path(__file__).parents[1] / "golden"
TRACE = GOLDEN / "traces" / "mooncake_conversation_1k.jsonl"
FIELDS = (
    "hit_blocks", "total_blocks", "hit_tokens", "total_tokens", "last_half_hit_tokens", "last_half_total_tokens",
)  # fmt: skip
# Counted by an independent reference replay; cross-checked with the PyPI package kvcache-simulator 0.1.3.
ROWS = json.loads((GOLDEN / "prefix_replay.json").read_text())["traces"]["mooncake_conversation_1k"]["rows"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['policy']}-{row['touch_order']}-{row['capacity_blocks']}")
def test_golden_counts(row: dict) -> None:
    [found] = replay(open_trace(TRACE), [row["capacity_blocks"]], [row["policy"]], row["touch_order"])
    assert {name: getattr(found, name) for name in FIELDS} == {name: row[name] for name in FIELDS}


def chained(draw_tree: list[int]) -> list[tuple[int, ...]]:
    """Prompts whose ids chain: each prompt is an earlier prompt's prefix plus new ids."""
    prompts, fresh = [], itertools.count()
    for choice in draw_tree:
        base = prompts[choice % len(prompts)] if prompts and choice % 4 else ()
        kept = base[: choice // 4 % (len(base) + 1)]
        prompts.append((*kept, *(next(fresh) for _ in range(1 + choice % 3))))
    return prompts


trees = st.lists(st.integers(0, 500), min_size=1, max_size=40).map(chained)


def write(path: Path, prompts: list[tuple[int, ...]]) -> Path:
    lines = [
        json.dumps({"timestamp": 0, "input_length": 512 * len(keys), "output_length": 1, "hash_ids": keys})
        for keys in prompts
    ]
    path.write_text("\n".join(lines))
    return path


def obvious_lru(prompts: list[tuple[int, ...]], capacity: int, backwards: bool) -> int:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for keys in prompts:
        hits += len(list(itertools.takewhile(lambda key: key in cache, keys)))
        for key in reversed(keys) if backwards else keys:
            cache[key] = None
            cache.move_to_end(key)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return hits


@settings(max_examples=60, deadline=None)
@given(prompts=trees, capacity=st.integers(1, 30), backwards=st.booleans())
def test_stack_distances_equal_an_obvious_lru(tmp_path_factory, prompts, capacity, backwards) -> None:
    path = write(tmp_path_factory.mktemp("t") / "t.jsonl", prompts)
    order = "last_to_first" if backwards else "first_to_last"
    [row] = replay(open_trace(path), [capacity], ["lru"], order)
    assert row.hit_blocks == obvious_lru(prompts, capacity, backwards)


def test_renumbering_changes_nothing(monkeypatch) -> None:
    import kvplan.simulator.replay as module
    from kvplan.simulator.stack import RecencyStack

    plain = replay(open_trace(TRACE), [500, 5000, None])
    monkeypatch.setattr(module, "RecencyStack", lambda: RecencyStack(slots=64))
    assert replay(open_trace(TRACE), [500, 5000, None]) == plain


def best_possible(prompts: list[tuple[int, ...]], capacity: int) -> int:
    """Try every subset that may stay after each request."""
    states = {frozenset(): 0}
    for keys in prompts:
        following: dict[frozenset, int] = {}
        for cache, hits in states.items():
            run = len(list(itertools.takewhile(lambda key, held=cache: key in held, keys)))
            union = cache | set(keys)
            for size in range(min(capacity, len(union)) + 1):
                for kept in itertools.combinations(sorted(union), size):
                    held = frozenset(kept)
                    following[held] = max(following.get(held, 0), hits + run)
        states = following
    return max(states.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5).map(chained), st.integers(1, 3))
def test_optimal_is_the_optimum(tmp_path_factory, prompts, capacity) -> None:
    path = write(tmp_path_factory.mktemp("t") / "t.jsonl", prompts)
    [row] = replay(open_trace(path), [capacity], ["optimal"])
    assert row.hit_blocks == best_possible(prompts, capacity)


@settings(max_examples=40, deadline=None)
@given(prompts=trees, capacity=st.integers(1, 20), policy=st.sampled_from(["lru", "fifo", "lfu"]))
def test_misses_add_up_and_no_policy_beats_the_optimum(tmp_path_factory, prompts, capacity, policy) -> None:
    path = write(tmp_path_factory.mktemp("t") / "t.jsonl", prompts)
    [row] = replay(open_trace(path), [capacity], [policy], split=True)
    parts = (
        row.misses.never_reusable_blocks, row.misses.lost_to_capacity_blocks, row.misses.lost_to_policy_blocks,
    )  # fmt: skip
    assert min(parts) >= 0
    assert row.hit_blocks + sum(parts) == row.total_blocks
    assert row.misses.never_reusable_blocks == len({key for keys in prompts for key in keys})


@pytest.mark.parametrize("policies", [["lru"], ["lru", "fifo"]])
def test_an_interrupted_replay_keeps_what_it_has(monkeypatch, policies: list[str]) -> None:
    import kvplan.simulator.replay as module

    class Stopping(module.RecencyStack):
        def touch(self, keys) -> None:
            super().touch(keys)
            if len(self) > 2000:
                raise KeyboardInterrupt

    whole = replay(open_trace(TRACE), [1000], policies)
    monkeypatch.setattr(module, "RecencyStack", Stopping)
    rows = replay(open_trace(TRACE), [1000], policies)
    assert all(row.partial for row in rows)
    assert not any(row.partial for row in whole)
    assert 0 < rows[0].requests < whole[0].requests
    assert 0 < rows[0].total_blocks < whole[0].total_blocks


def test_lru_never_falls_with_capacity() -> None:
    rows = replay(open_trace(TRACE), [10, 100, 1000, 2000, 5000, None])
    hits = [row.hit_blocks for row in rows]
    assert hits == sorted(hits)


GOOD = '{"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace("1,", "NaN,", 1), "line 1: time: found NaN"),
        (GOOD.replace("1,", "-1,", 1), "line 1: time: found -1"),
        (GOOD + GOOD.replace("1,", "0,", 1), "line 2: found the time 0 s after 0.001 s"),
        (GOOD.replace("[1, 2]", "[1]"), "hash_ids: found 1 ids for 600 tokens, expected 2"),
        (GOOD.replace("[1, 2]", "[1, 1]"), "found an id twice"),
        (GOOD.replace("[1, 2]", '["a", 2]'), "expected a list of whole numbers"),
        (GOOD.replace("600", "-600"), "input_length: found -600"),
        ("[1]\n", "expected a JSON object"),
        ("{\n", "found no JSON"),
        ("", "found no request"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        replay(open_trace(path), [None])


def test_truncated_gzip_long_lines_and_units(tmp_path: Path, monkeypatch) -> None:
    whole = gzip.compress(GOOD.encode() * 1)
    (tmp_path / "t.jsonl.gz").write_bytes(whole[:-12])
    with pytest.raises(InputError, match="truncated gzip"):
        replay(open_trace(tmp_path / "t.jsonl.gz"), [None])
    (tmp_path / "long.jsonl").write_text("x" * 3000)
    monkeypatch.setattr("kvplan.simulator.traces.MAX_LINE_BYTES", 1000)
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        replay(open_trace(tmp_path / "long.jsonl"), [None])
    (tmp_path / "t.csv").write_text("arrival,input_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(InputError, match="found no time unit"):
        open_trace(tmp_path / "t.csv")
    assert next(open_trace(tmp_path / "t.csv", time_unit="ms").rows()).prompt == 1
    (tmp_path / "t.csv").write_text("arrival_s,input_tokens\n0,1\n")
    with pytest.raises(InputError, match=r"found the columns 'arrival_s,input_tokens'"):
        list(open_trace(tmp_path / "t.csv").rows())
