"""What an advice says about a constraint, a gain and memory, in words."""

from __future__ import annotations

from kvplan.answers.levers import Candidate
from kvplan.answers.standing import Deployment, Standing
from kvplan.units import both, seconds, tokens

_TIMES = {2: "doubled", 3: "tripled", 4: "quadrupled"}


def constraint(goal: str, at: Deployment, now: Standing) -> str:
    """What stands in the way of the goal now, in one or two sentences."""
    device = f"{at.device.name}" if at.gpus == 1 else f"each of {at.gpus} x {at.device.name}"
    pool = f"{both(now.pool_bytes_per_gpu)} of KV pool on {device}"
    if now.pool_bytes_per_gpu == 0:
        return f"The weights ({both(at.weight_bytes or 0)}) leave no KV pool on {device}."
    length = f"{tokens(at.context)} tokens"
    match goal:
        case "capacity":
            held = _count(now.sequences, "sequence")
            return f"{pool} holds {held} of {length}, {tokens(now.pool_tokens)} tokens in all."
        case "context":
            who = "one sequence" if at.batch == 1 else f"each of {at.batch:,} sequences"
            own = ", the model's own limit" if now.longest_context_tokens == at.spec.max_context else ""
            return f"{pool} gives {who} at most {tokens(now.longest_context_tokens)} tokens{own}."
        case "latency":
            weights = at.weight_seconds
            beside = "" if weights is None else f", beside {seconds(weights)} for reading all weights once"
            bound = "FLOPs bind, not bandwidth" if now.compute_bound else f"{at.device.memory_bandwidth_gbs:,.0f} GB/s"
            return (
                f"A decode step of {_count(at.batch, 'sequence')} of {length} reads "
                f"{both(now.read_bytes_per_step_per_gpu)} of cache on {device}: {seconds(now.read_seconds)} at the "
                f"roofline ({bound}){beside}."
            )
        case _:
            return f"{pool} holds {_count(now.idle_sessions, 'idle session')} of {length}; the next one evicts another."


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def gain_text(goal: str, now: Standing, after: Standing) -> str:
    """The gain in the goal's own unit, before and after."""
    match goal:
        case "capacity":
            return (
                f"{tokens(now.pool_tokens)} to {tokens(after.pool_tokens)} tokens"
                f"{_ratio(now.pool_tokens, after.pool_tokens)}, {now.sequences:,} to {after.sequences:,} sequences"
            )
        case "context":
            before, later = now.longest_context_tokens, after.longest_context_tokens
            return f"{tokens(before)} to {tokens(later)} tokens{_ratio(before, later)}"
        case "latency":
            saved = now.read_seconds - after.read_seconds
            return f"{seconds(now.read_seconds)} to {seconds(after.read_seconds)} a step, {seconds(saved)} less"
        case _:
            text = f"{now.idle_sessions:,} to {after.idle_sessions:,} idle sessions"
            return text if after.resume_seconds is None else f"{text}, each back in {seconds(after.resume_seconds)}"


def _ratio(before: int, after: int) -> str:
    return f" ({after / before:.2f}x)" if before else ""


def memory_words(candidate: Candidate, now: Standing, after: Standing, pools: bool, block: int) -> str:
    """What happens to memory, which people expect to fall and often does not."""
    if candidate.technique == "quest":
        return f"memory does not fall: page summaries add {_more(now.bytes_per_sequence, after.bytes_per_sequence)}"
    if candidate.technique == "offload":
        return "total bytes are unchanged: idle sessions move to the tier and come back"
    if candidate.technique == "parallel":
        if now.pool_bytes_per_gpu == after.pool_bytes_per_gpu:
            return f"one GPU's pool stays {both(now.pool_bytes_per_gpu)} and holds a smaller share of each token"
        return f"one GPU's pool goes from {both(now.pool_bytes_per_gpu)} to {both(after.pool_bytes_per_gpu)}"
    if candidate.technique == "decode-context":
        return f"one GPU's pool stays {both(now.pool_bytes_per_gpu)} and holds a part of each sequence, not a copy"
    if candidate.technique == "prefix":
        return "each sequence's own bytes are unchanged; the shared blocks are stored once"
    if not pools:
        share = both(now.bytes_per_sequence_per_gpu - after.bytes_per_sequence_per_gpu)
        return f"memory drops by {share} a sequence and GPU: the engine allocates for the context asked for"
    return f"memory did not drop because the pool is fixed; {_grown(now, after, block)}"


def _grown(now: Standing, after: Standing, block: int) -> str:
    before, later = now.pool_tokens, after.pool_tokens
    ratio = later / before if before else 0
    word = next((text for times, text in _TIMES.items() if abs(ratio - times) < 1e-3), f"grew {ratio:.2f}x")
    blocks, how = "", ""
    if now.pool_tokens_in_blocks is not None and after.pool_tokens_in_blocks is not None:
        how = " by division"
        blocks = f", {tokens(now.pool_tokens_in_blocks)} to {tokens(after.pool_tokens_in_blocks)} in blocks of {block}"
    return f"tokens {word}: {tokens(before)} to {tokens(later)}{how}{blocks}"


def _more(before: int, after: int) -> str:
    return f"{both(after - before)} a sequence ({(after - before) / before:.2%})"
