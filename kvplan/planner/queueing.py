"""Closed forms of queues, for what the planner rules out before it simulates. `load` is a = lambda x E[S], in servers.

Erlang's formulas and the M/G/1 mean are exact; the G/G/c figures are Allen and Cunneen's and Kimura's approximations
(L. Kleinrock, Queueing Systems, vol. 1; T. Kimura, "Approximations for multi-server queues", Queueing Systems 17).
"""

from __future__ import annotations

import math

from kvplan.errors import InputError


def erlang_b(servers: int, load: float) -> float:
    """Share of arrivals that find all `servers` taken and leave, `load` offered; insensitive to the law of service.

    Raises InputError for a load below 0 or fewer than one server.
    """
    _check(servers, load)
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival of an M/M/c waits; 1 at and above capacity."""
    _check(servers, load)
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return servers * blocked / (servers - load * (1.0 - blocked))


def mmc_wait(servers: int, load: float, service: float = 1.0) -> float:
    """Mean wait in an M/M/c, in the unit of `service`; infinite at and above capacity."""
    if load >= servers:
        return math.inf
    return erlang_c(servers, load) * service / (servers - load)


def mmc_wait_exceeds(servers: int, load: float, time: float, service: float = 1.0) -> float:
    """Probability that the wait of an M/M/c is longer than `time`."""
    if load >= servers:
        return 1.0
    return erlang_c(servers, load) * math.exp(-(servers - load) * time / service)


def mg1_wait(load: float, service: float = 1.0, variability: float = 1.0) -> float:
    """Mean wait in an M/G/1 (Pollaczek and Khinchine); `variability` is the squared coefficient of variation of S."""
    _check(1, load)
    if load >= 1.0:
        return math.inf
    return (1.0 + variability) / 2.0 * load / (1.0 - load) * service


def ggc_wait(servers: int, load: float, service: float = 1.0, arrivals: float = 1.0, variability: float = 1.0) -> float:
    """Mean wait in a G/G/c (Allen and Cunneen): the M/M/c's times (ca2 + cs2) / 2, squared coefficients of variation.

    Exact for M/M/c and M/G/1.
    """
    return mmc_wait(servers, load, service) * (arrivals + variability) / 2.0


def kimura_wait(servers: int, load: float, service: float = 1.0, variability: float = 1.0) -> float:
    """Mean wait in an M/G/c by Kimura's interpolation between M/D/c and M/M/c.

    W = (1 + cs2) / (2 cs2 / W(M/M/c) + (1 - cs2) / W(M/D/c)) for cs2 up to 1.
    """
    exponential = mmc_wait(servers, load, service)
    if exponential in (0.0, math.inf):
        return exponential
    fixed = mdc_wait(servers, load, service)
    if variability >= 1.0:  # the interpolation is for laws between the two; beyond them the two-moment form holds
        return exponential * (1.0 + variability) / 2.0
    return (1.0 + variability) / (2.0 * variability / exponential + (1.0 - variability) / fixed)


def mdc_wait(servers: int, load: float, service: float = 1.0) -> float:
    """Mean wait in an M/D/c by Cosmetatos' approximation, which is exact for one server.

    W = W(M/M/c) / 2 x (1 + (1 - rho)(c - 1)(sqrt(4 + 5c) - 2) / (16 rho c)).
    """
    exponential = mmc_wait(servers, load, service)
    if exponential in (0.0, math.inf):
        return exponential
    busy = load / servers
    correction = (1.0 - busy) * (servers - 1) * (math.sqrt(4.0 + 5.0 * servers) - 2.0) / (16.0 * busy * servers)
    return exponential / 2.0 * (1.0 + correction)


def ggc_wait_quantile(
    share: float,
    servers: int,
    load: float,
    service: float = 1.0,
    arrivals: float = 1.0,
    variability: float = 1.0,
) -> float:
    """The wait that a `share` of arrivals doesn't exceed: the M/M/c's exponential tail stretched by (ca2 + cs2) / 2.

    0 where so many arrivals don't wait at all, infinite at and above capacity.
    """
    if load >= servers:
        return math.inf
    waits = erlang_c(servers, load)
    if waits <= 1.0 - share:
        return 0.0
    stretch = (arrivals + variability) / 2.0
    return math.log(waits / (1.0 - share)) * stretch * service / (servers - load)


def _check(servers: int, load: float) -> None:
    if servers < 1 or not load >= 0.0 or math.isinf(load):
        raise InputError(f"queue: found {servers} servers and a load of {load:g}, expected at least 1 and one from 0")
