"""The fast engine and the step-by-step reference agree to the tick and to the block."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.performance.reads import NEVER, Reads
from kvplan.performance.step import AffineStep
from kvplan.simulator.engine import Engine
from kvplan.simulator.laws import GroupLaw, Layout
from kvplan.simulator.pool import Pool
from kvplan.simulator.request import Request
from kvplan.simulator.settings import Settings
from tests.simulator.reference import Reference, Sequence


class Silent:
    def steps(self, *_: object) -> None: ...
    def event(self, *_: object) -> None: ...


@dataclass
class ToyStep:
    """A step model with every term: tokens, samples, a floor, knees in its reads, attention of chunks."""

    reads: Reads
    base: int = 5000
    floor: int = 0
    name: str = "toy"
    free_prefill: bool = False
    extra: dict = field(default_factory=dict)

    def fixed(self, tokens: int, sampled: int, decoding: int) -> int:
        return self.base + 7 * tokens + 3 * sampled

    def least(self, decoding: int) -> int:
        return self.floor * decoding

    def prefill(self, chunks) -> int:
        return sum(count * (2 * stored + count) for stored, count in chunks)


reads = st.builds(
    Reads,
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([NEVER, 3, 17, 40, 64])), max_size=3).map(tuple),
)
steps = st.one_of(
    st.builds(ToyStep, reads, floor=st.sampled_from([0, 100, 400])),
    st.builds(AffineStep, st.integers(1, 900), st.integers(0, 20)),
)
full = st.builds(GroupLaw, st.just("full"), st.sampled_from([1, 3, 4, 16]))
window = st.builds(GroupLaw, st.just("window"), st.sampled_from([1, 4, 8]), st.sampled_from([1, 5, 16, 33]))
fixed = st.builds(GroupLaw, st.just("fixed"), blocks=st.integers(1, 3))
layouts = st.one_of(
    full.map(lambda group: (group,)),
    st.tuples(full, window),
    st.tuples(full, fixed),
    st.tuples(window, full, window, fixed),
)
request = st.tuples(st.integers(0, 4000), st.integers(1, 60), st.integers(1, 40), st.integers(0, 2))


def outcome(item) -> tuple:
    return (item.id, item.admitted, item.first_token, item.finished, item.preemptions, item.hit_tokens)


def drive(engine: Engine, requests: list[Request], limit_between: bool = True) -> list[Request]:
    """The fast engine over an open arrival process; blocks are checked after every action."""
    coming = sorted(requests, key=lambda r: (r.arrival, r.id))
    while coming or engine.busy:
        if not engine.busy:
            engine.now = max(engine.now, coming[0].arrival)
        while coming and coming[0].arrival <= engine.now:
            engine.submit(coming.pop(0))
        if engine.busy:
            engine.advance(coming[0].arrival if coming else 1 << 120)
            engine.check()
    return engine.finished


@settings(max_examples=400, deadline=None)
@given(
    groups=layouts,
    step=steps,
    requests=st.lists(request, min_size=1, max_size=14),
    room=st.integers(0, 60),
    seqs=st.integers(1, 8),
    budget=st.sampled_from([8, 16, 33, 200]),
    order=st.sampled_from(["fcfs", "priority"]),
    emits=st.booleans(),
)
def test_fast_equals_reference(groups, step, requests, room, seqs, budget, order, emits) -> None:
    rules = Settings(
        max_num_seqs=seqs, max_num_batched_tokens=budget, order=order, emits=emits and not step.free_prefill
    )
    layout = Layout(groups, 0)
    most = max(
        max(layout.at_rest(p + g), layout.held(p + g - min(p + g, budget), min(p + g, budget)))
        for _, p, g, _ in requests
    )
    layout = Layout(groups, most + room)
    engine = Engine(layout, step, rules, Pool(layout.blocks, 1), Silent())
    fast = drive(engine, [Request(i, a, p, g, priority=w) for i, (a, p, g, w) in enumerate(requests)])
    plain = Reference(list(groups), layout.blocks, step, rules)
    slow = plain.run([Sequence(i, a, p, g, priority=w) for i, (a, p, g, w) in enumerate(requests)])
    assert sorted(map(outcome, fast)) == sorted(map(outcome, slow))
    assert engine.pool.available == layout.blocks == plain.available()
    assert engine.now == plain.now


@settings(max_examples=400, deadline=None)
@given(
    block=st.sampled_from([1, 4]),
    requests=st.lists(
        st.tuples(st.integers(0, 3000), st.integers(0, 5), st.integers(0, 8), st.integers(1, 3), st.integers(1, 12)),
        min_size=1, max_size=14,
    ),
    room=st.integers(0, 30),
    seqs=st.integers(1, 6),
    budget=st.sampled_from([16, 64]),
    last_to_first=st.booleans(),
)  # fmt: skip
def test_prefix_cache_equals_block_by_block(block, requests, room, seqs, budget, last_to_first) -> None:
    """Keys of one block each: which blocks hit, stay and go is the same as with explicit blocks."""
    rules = Settings(max_num_seqs=seqs, max_num_batched_tokens=budget, prefix_caching=True)
    step = ToyStep(Reads(0, ((3, NEVER),)))
    groups = (GroupLaw("full", block),)
    made = []
    for number, (arrival, family, shared, own, output) in enumerate(requests):
        keys = [("f", family, i) for i in range(shared)] + [("o", number, i) for i in range(own)]
        prompt = len(keys) * block + (1 if block > 1 else 0)
        ends = tuple((i + 1) * block for i in range(len(keys)))
        made.append((number, arrival, prompt, output, tuple(keys), ends))
    layout = Layout(groups, max(-(-(p + g) // block) for _, _, p, g, _, _ in made) + room)
    engine = Engine(layout, step, rules, Pool(layout.blocks, block, "lru", last_to_first), Silent())
    fast = drive(engine, [Request(n, a, p, g, keys=k, ends=e) for n, a, p, g, k, e in made])
    plain = Reference(list(groups), layout.blocks, step, rules, last_to_first)
    slow = plain.run([Sequence(n, a, p, g, keys=k) for n, a, p, g, k, _ in made])
    if block > 1:  # with one-token blocks the last-token rule cuts inside an extent
        assert sorted(map(outcome, fast)) == sorted(map(outcome, slow))
        assert engine.pool.free == plain.free


def test_five_requests_one_preemption() -> None:
    """100 blocks of 16, five prompts of 320 tokens, 32 outputs: one preemption, 64 steps (by hand)."""
    layout = Layout((GroupLaw("full", 16),), 100)
    step = AffineStep(1000)
    engine = Engine(layout, step, Settings(emits=False), Pool(100, 16), Silent())
    done = drive(engine, [Request(i, 0, 320, 32) for i in range(5)])
    assert engine.now == 64 * 1000
    assert engine.preemptions == 1
    assert sum(r.generated for r in done) == 160
    assert sum(r.recomputed for r in done) == 320
    assert [r.finished for r in done] == [32_000] * 4 + [64_000]
    assert done[-1].id == 4
    assert engine.pool.free == 100


@pytest.mark.parametrize(("written", "blocks"), [(0, 63), (8, 63), (9, 64), (24, 64), (25, 65)])
def test_blocks_of_a_thousand_token_prompt(written: int, blocks: int) -> None:
    assert Layout((GroupLaw("full", 16),), 100).at_rest(1000 + written) == blocks
