"""One request on its way through the simulator."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvplan.simulator.pool import Extent

UNSET = -1
#: later than any time and more than any length
FOREVER = 1 << 120


@dataclass(slots=True, eq=False)
class Request:
    """What arrives, and what has happened to it so far. Times are ticks, lengths tokens.

    `keys` name consecutive stretches of the prompt (and of the output where a later prompt repeats it); `ends` are the
    tokens at which they end. An equal key means equal content from the start up to there. `stored` counts tokens in the
    cache, `target` those a prefill must store; both refer to the last time the request was admitted.
    """

    id: int
    arrival: int
    prompt: int
    output: int
    priority: int = 0
    keys: tuple[Hashable, ...] = ()
    ends: tuple[int, ...] = ()
    session: int = UNSET
    turn: int = 0
    service: int = UNSET

    admitted: int = UNSET
    first_token: int = UNSET
    finished: int = UNSET
    replica: int = 0
    stored: int = 0
    target: int = 0
    generated: int = 0
    hit_tokens: int = 0
    tier_tokens: int = 0
    preemptions: int = 0
    recomputed: int = 0
    refused: str | None = None
    ready: bool = False

    # Bookkeeping of the engine that runs it.
    order: int = UNSET
    joined: int = UNSET
    base: int = 0
    last_step: int = UNSET
    cap: int = FOREVER
    swapped: bool = False
    own_blocks: int = 0
    registered: int = 0
    held: list[Extent] = field(default_factory=list)


def rank(request: Request) -> tuple[int, int, int]:
    """The order of service under priority: class, then arrival."""
    return (request.priority, request.arrival, request.id)
