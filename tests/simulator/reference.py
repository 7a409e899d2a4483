"""A second simulator, as plain as can be: every step one by one, every block in a list, every sum taken anew.

It shares with the fast engine only the step-time model (a function) and the description of the layout.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Sequence:
    id: int
    arrival: int
    prompt: int
    output: int
    priority: int = 0
    keys: tuple = ()  # one key a full block of the prompt
    stored: int = 0
    target: int = 0
    generated: int = 0
    decoding: bool = False
    tables: list = field(default_factory=list)  # one list of blocks a group; None: given back
    admitted: int | None = None
    first_token: int | None = None
    finished: int | None = None
    preemptions: int = 0
    hit_tokens: int = 0
    decided: int = 0


class Reference:
    """Blocks are ("free", n) tokens or (key,) names; a kept block that nobody uses waits in `idle`, oldest first."""

    def __init__(self, groups: list[Any], blocks: int, step_time: Any, settings: Any, last_to_first: bool = True):
        self.groups, self.free, self.step_time, self.settings = groups, blocks, step_time, settings
        self.total = blocks
        self.idle: OrderedDict = OrderedDict()
        self.users: dict = {}  # kept block -> how many sequences use it
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.now = 0
        self.last_to_first = last_to_first
        self.used_after: list[tuple[int, int]] = []

    def available(self) -> int:
        return self.free + len(self.idle)

    def take(self) -> None:
        if self.free:
            self.free -= 1
        else:
            self.idle.popitem(last=False)

    def drop(self, block: Any) -> None:
        if block == "own":
            self.free += 1
        elif block is not None:
            self.users[block] -= 1
            if not self.users[block]:
                del self.users[block]
                self.idle[block] = None

    def slide(self, sequence: Sequence) -> None:
        """Windows give back blocks that the next token no longer sees."""
        for group, table in zip(self.groups, sequence.tables, strict=True):
            if group.kind == "window":
                for index in range(len(table)):
                    out_of_sight = (index + 1) * group.block <= sequence.stored + 1 - group.window
                    if out_of_sight and table[index] is not None:
                        self.drop(table[index])
                        table[index] = None

    def missing(self, sequence: Sequence, computing: int) -> int:
        count = 0
        for group, table in zip(self.groups, sequence.tables, strict=True):
            while_computing = (
                group.blocks if group.kind == "fixed" else -(-(sequence.stored + computing) // group.block)
            )
            count += max(0, while_computing - len(table))
        return count

    def extend(self, sequence: Sequence, computing: int) -> None:
        for group, table in zip(self.groups, sequence.tables, strict=True):
            wanted = group.blocks if group.kind == "fixed" else -(-(sequence.stored + computing) // group.block)
            while len(table) < wanted:
                self.take()
                table.append("own")
        if self.settings.prefix_caching:
            self.keep(sequence, (sequence.stored + computing) // self.groups[0].block)

    def keep(self, sequence: Sequence, full_blocks: int) -> None:
        """A block that is full now is kept unless its content is already there; that is decided once."""
        table = sequence.tables[0]
        first, sequence.decided = sequence.decided, min(full_blocks, len(sequence.keys))
        for index in range(first, sequence.decided):
            key = sequence.keys[index]
            if table[index] == "own" and key not in self.users and key not in self.idle:
                table[index] = key
                self.users[key] = 1

    def release(self, sequence: Sequence) -> None:
        for table in sequence.tables:
            for block in reversed(table) if self.last_to_first else table:
                self.drop(block)
        sequence.tables = []

    def preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.release(sequence)
        sequence.preemptions += 1
        sequence.stored, sequence.decoding = 0, False
        self.waiting.insert(0, sequence)
        self.order()

    def order(self) -> None:
        if self.settings.order == "priority":
            self.waiting.sort(key=lambda s: (s.priority, s.arrival, s.id))

    def victim(self) -> Sequence:
        if self.settings.order == "priority":
            return max(self.running, key=lambda s: (s.priority, s.arrival, s.id))
        return self.running[-1]

    def run(self, arrivals: list[Sequence]) -> list[Sequence]:
        """Serve everything; returns the sequences in order of finishing."""
        coming = sorted(arrivals, key=lambda s: (s.arrival, s.id))
        done: list[Sequence] = []
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, coming[0].arrival)
            while coming and coming[0].arrival <= self.now:
                self.waiting.append(coming.pop(0))
                self.order()
            done += self.one_step()
            self.used_after.append((self.now, self.total - self.available()))
        return done

    def one_step(self) -> list[Sequence]:
        settings = self.settings
        if self.step_time.free_prefill:
            self.admit_free()
        decoding = [s for s in self.running if s.decoding]
        for sequence in decoding:
            self.slide(sequence)
        preempted = False
        for sequence in decoding:
            while sequence in self.running and self.missing(sequence, 1) > self.available():
                self.preempt(self.victim())
                preempted = True
            if sequence in self.running:
                self.extend(sequence, 1)
        decoding = [s for s in self.running if s.decoding]
        budget = settings.max_num_batched_tokens - len(decoding)
        chunks = []
        for sequence in [s for s in self.running if not s.decoding]:
            count = min(sequence.target - sequence.stored, budget)
            self.slide(sequence)
            if self.missing(sequence, count) > self.available():
                self.preempt(sequence)
                preempted = True
            else:
                self.extend(sequence, count)
                chunks.append((sequence, count))
                budget -= count
        while not self.step_time.free_prefill and not preempted and self.waiting and budget > 0:
            count = self.admit(self.waiting[0], budget) if len(self.running) < settings.max_num_seqs else 0
            if not count:
                break
            chunks.append((self.running[-1], count))
            budget -= count
        if not chunks and not decoding:
            return []
        return self.execute(decoding, chunks)

    def admit(self, sequence: Sequence, budget: int) -> int:
        sequence.target = sequence.prompt + sequence.generated
        sequence.tables = [[] for _ in self.groups]
        hits = []
        if self.settings.prefix_caching:
            for index, key in enumerate(sequence.keys):
                if (index + 1) * self.groups[0].block > sequence.target - 1:
                    break
                if key not in self.users and key not in self.idle:
                    break
                hits.append(key)
        sequence.stored = len(hits) * self.groups[0].block
        count = min(sequence.target - sequence.stored, budget)
        idle_hits = sum(1 for key in hits if key in self.idle)
        wanted = sum(
            group.blocks if group.kind == "fixed" else -(-(sequence.stored + count) // group.block)
            for group in self.groups
        )
        if wanted - len(hits) > self.available() - idle_hits or (
            not self.settings.chunked_prefill and count < sequence.target - sequence.stored
        ):
            sequence.stored = 0
            return 0
        for key in hits:
            self.idle.pop(key, None)
            self.users[key] = self.users.get(key, 0) + 1
            sequence.tables[0].append(key)
        sequence.decided = len(hits)
        if not sequence.preemptions:
            sequence.hit_tokens = sequence.stored
        self.start(sequence)
        self.extend(sequence, count)
        return count

    def start(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        if sequence.admitted is None:
            sequence.admitted = self.now

    def admit_free(self) -> None:
        """A free prefill stores the prompt at once; a window then holds what the last token saw."""
        while self.waiting and len(self.running) < self.settings.max_num_seqs:
            sequence = self.waiting[0]
            target = sequence.prompt + sequence.generated
            tables = []
            for group in self.groups:
                count = group.blocks if group.kind == "fixed" else -(-target // group.block)
                unseen = max(0, target - group.window) // group.block if group.kind == "window" else 0
                tables.append([None] * unseen + ["own"] * (count - unseen))
            wanted = sum(table.count("own") for table in tables)
            if wanted > self.available():
                return
            self.start(sequence)
            for _ in range(wanted):
                self.take()
            sequence.tables, sequence.stored, sequence.target = tables, target, target
            sequence.decoding = True

    def execute(self, decoding: list[Sequence], chunks: list[tuple[Sequence, int]]) -> list[Sequence]:
        model, settings = self.step_time, self.settings
        tokens = len(decoding) + sum(count for _, count in chunks)
        ending = [s for s, count in chunks if s.stored + count == s.target]
        self.now += model.fixed(tokens, len(decoding) + len(ending), len(decoding))
        if decoding:
            reads = sum(model.reads.ticks(s.stored + 1) for s in decoding)
            self.now += max(model.least(len(decoding)), reads)
        self.now += model.prefill([(s.stored, count) for s, count in chunks])
        finished = []
        for sequence, count in chunks:
            sequence.stored += count
        for sequence in [*decoding, *ending]:
            if sequence in decoding:
                sequence.stored += 1
            if sequence in decoding or settings.emits:
                sequence.generated += 1
                if sequence.first_token is None:
                    sequence.first_token = self.now
            if sequence in ending:
                sequence.decoding = True
                self.trim(sequence)
            if sequence.generated >= sequence.output:
                sequence.finished = self.now
                self.running.remove(sequence)
                self.release(sequence)
                finished.append(sequence)
        return finished

    def trim(self, sequence: Sequence) -> None:
        """After a prefill a window keeps what its last token saw."""
        sequence.stored -= 1
        self.slide(sequence)
        sequence.stored += 1
