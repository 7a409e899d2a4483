"""Findings about what the engines stand on: shared devices, the pod's memory, shared memory between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.check.manifests.reading import Finding, FoundCommand, Level
from kvplan.units import GIB, MIB, gib

_RANKED = ("vllm", "sglang", "tensorrt-llm", "lmdeploy")
_FRACTIONS = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}
_VLLM_DEFAULT = 0.9
_LLAMA_CACHE_RAM = 8192
_ALL = "all"


def find(found: FoundCommand) -> Iterator[Finding]:
    """What the host side of one command runs into."""
    yield from _pod_memory(found)
    yield from _shared_memory(found)
    yield from _slices(found)


def _at(found: FoundCommand, rule: str, level: Level, text: str, flag: str = "") -> Finding:
    line = found.command.lines.get(flag, found.line) or found.line
    return Finding(rule, level, text, line, found.place, flag or None)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0.0


def pinned(found: FoundCommand) -> tuple[int, str, str]:
    """Host bytes that the flags pin over all ranks, how they come about, and the flag that asks for most."""
    flags, ranks = found.command.flags, found.command.ranks
    parts: list[tuple[int, str, str]] = []
    for name, unit, each in (
        ("swap_space", GIB, True),
        ("cpu_offload_gb", GIB, True),
        ("kv_offloading_size", GIB, False),
    ):
        size = int(_number(flags.get(name)) * unit)
        if found.command.engine == "vllm" and size:
            parts.append(
                (size * (ranks if each else 1), f"{name} {gib(size)}{f' x {ranks} ranks' if each else ''}", name)
            )
    if found.command.engine == "sglang" and _number(flags.get("hicache_size")):
        size = int(_number(flags.get("hicache_size")) * 10**9)
        parts.append((size * ranks, f"hicache_size {gib(size)} x {ranks} ranks", "hicache_size"))
    cache = flags.get("kv_cache_config")
    if found.command.engine == "tensorrt-llm" and isinstance(cache, dict) and _number(cache.get("host_cache_size")):
        size = int(_number(cache.get("host_cache_size")))
        parts.append((size * ranks, f"host_cache_size {gib(size)} x {ranks} ranks", "kv_cache_config"))
    if found.command.engine == "llama.cpp":
        size = int(_number(flags.get("cache_ram", _LLAMA_CACHE_RAM))) * MIB
        parts.append((size, f"--cache-ram {gib(size)}{'' if 'cache_ram' in flags else ', its default'}", "cache_ram"))
    total = sum(size for size, _, _ in parts)
    return total, " + ".join(text for _, text, _ in parts), max(parts)[2] if parts else ""


def _pod_memory(found: FoundCommand) -> Iterator[Finding]:
    limit = found.surroundings.memory_limit
    total, how, flag = pinned(found)
    if limit is None or not total or total < limit:
        return
    said = (f"the engine pins {gib(total)} of host memory ({how}) and loads the weights through it, and the "
            "memory limit is "
            f"{gib(limit)}: the process is killed")  # fmt: skip
    yield _at(found, "pod-memory", "error", said, flag)


def _shared_memory(found: FoundCommand) -> Iterator[Finding]:
    ranks = found.command.ranks
    if found.surroundings.wide_shared_memory is False and ranks > 1 and found.command.engine in _RANKED:
        said = (f"{ranks} ranks talk over /dev/shm, which is 64 MiB without a memory-backed volume there (or "
                "ipc: host, "
                f"shm_size): NCCL may fail at start")  # fmt: skip
        yield _at(found, "small-shared-memory", "warning", said)


def _slices(found: FoundCommand) -> Iterator[Finding]:
    ids = found.accelerator.devices
    if found.command.engine == "vllm" and any(name.startswith("MIG-") for name in ids):
        said = "a MIG UUID in CUDA_VISIBLE_DEVICES stops some releases of vLLM: pick the slice by resource instead"
        yield _at(found, "mig-uuid", "warning", said)


def shared_devices(commands: Sequence[FoundCommand]) -> list[Finding]:
    """Engines of one machine that are given the same devices, with the sum of what they ask for."""
    out: list[Finding] = []
    for machine in dict.fromkeys(found.surroundings.machine for found in commands):
        beside = [found for found in commands if found.surroundings.machine == machine and not found.condition]
        if machine is None or len(beside) < 2:
            continue
        told: set[tuple[str, ...]] = set()
        every = {device for found in beside for device in _devices(found)}
        for device in sorted(every):
            sharing = [found for found in beside if device in _devices(found) or _ALL in _devices(found)]
            names = tuple(found.place for found in sharing)
            if len(sharing) > 1 and names not in told:
                told.add(names)
                out.append(_sharing(device, sharing))
    return out


def _devices(found: FoundCommand) -> tuple[str, ...]:
    """The ids a command is given: picked ones, the first ones of a bare count, or all."""
    reading = found.accelerator
    if reading.devices:
        return reading.devices
    if reading.count is not None:
        return tuple(str(number) for number in range(min(reading.count, 64)))
    return (_ALL,) if reading.stated_as and "all" in reading.stated_as else ()


def _sharing(device: str, sharing: Sequence[FoundCommand]) -> Finding:
    shares = [_fraction(found) for found in sharing]
    listed = ", ".join(f"{found.place} {_share(found, share)}" for found, share in zip(sharing, shares, strict=True))
    known = [share for share in shares if share is not None]
    total = sum(known)
    too_much = total > 1 or any(found.command.engine not in _FRACTIONS for found in sharing)
    if total > 1:
        end = (
            f"together {total:.2f} of its memory, and a fraction is of the total, not of what is free: one "
            "doesn't start"
        )
    else:
        end = "each profiles what the other uses, so the second gets less for its cache than its fraction says"
    text = f"device {device} is given to {len(sharing)} engines: {listed}; {end}"
    last = sharing[-1]
    return Finding("shared-device", "error" if too_much and total > 1 else "warning", text, last.line, last.place)


def _fraction(found: FoundCommand) -> float | None:
    flag = _FRACTIONS.get(found.command.engine)
    value = found.command.flags.get(flag) if flag else None
    if isinstance(value, float):
        return value
    return _VLLM_DEFAULT if found.command.engine == "vllm" and flag not in found.command.flags else None


def _share(found: FoundCommand, share: float | None) -> str:
    if share is None:
        return "(share not stated)"
    flag = _FRACTIONS[found.command.engine]
    return f"({flag} {share:g}{'' if flag in found.command.flags else ', the default of older releases'})"
