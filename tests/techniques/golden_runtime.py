"""Golden cases of what a runtime changes: reads, bits, budgets, blocks, prefixes, tiers, and all together."""

from __future__ import annotations

from fractions import Fraction

from kvplan.cache.formats import find_format
from kvplan.cache.precision import Precision
from kvplan.cache.size import plan_cache
from kvplan.cache.techniques import (
    Techniques,
    apply,
    eviction,
    offload,
    paging,
    parse_techniques,
    prefix,
    quantization,
    sharing,
    sparse_reads,
    what_if,
)
from kvplan.memory.allocator import allocated_bytes, reserved_bytes
from kvplan.performance.mbu import mbu, slope_bandwidth
from kvplan.spec import layers as kinds
from kvplan.units import GIB, KIB, MIB
from tests.techniques.golden_case import Answers, Inputs, case, dtype, heads, local_global, plan, token_bytes
from tests.techniques.shapes import dense, spec


@case("quest.short*")
def quest_short(i: Inputs) -> Answers:
    quest = sparse_reads.parse_sparse_read(f"quest:page={i['S']},budget={i['budget']}")
    return {"read_fraction": float(quest.read_fraction(i["N"]))}


@case("quest.budget*")
def quest_pages(i: Inputs) -> Answers:
    quest = sparse_reads.parse_sparse_read(f"quest:page={i['S']},budget={i['budget']}")
    return {"pages": quest.pages, "selectable_pages": quest.selectable_pages}


@case("quest.*")
def quest(i: Inputs) -> Answers:
    asked = parse_techniques(sparse_read=f"quest:page={i['S']},budget={i['budget']},dense={i['dense']}")
    precision = dtype(i["e"])
    before = apply(heads(i), precision, Techniques(), i["N"])
    after = apply(heads(i), precision, asked, i["N"])
    all_sparse = parse_techniques(sparse_read=f"quest:page={i['S']},budget={i['budget']},dense=0")
    sparse = apply(heads(i), precision, all_sparse, i["N"])
    fraction = sparse.read_bytes / before.read_bytes
    return {
        "kv_bytes": before.stored_bytes,
        "metadata_bytes": after.stored_bytes - before.stored_bytes,
        "stored_factor": after.stored_bytes / before.stored_bytes,
        "sparse_layer_read_fraction": fraction,
        "attention_speedup_ratio": 1 / fraction,
        "model_read_fraction": after.read_bytes / before.read_bytes,
    }


@case("quant.kivi2_residual*")
def kivi_residual(i: Inputs) -> Answers:
    kivi = find_format(f"kivi{i['bits']}:group={i['g']},residual={i['R']}")
    assert kivi.tokens is not None
    left = quantization.residual(kivi.tokens, i["N"])
    model = dense(1, i["Hkv"], i["D"])
    size = plan_cache(model, Precision(kivi, kivi)).needed_bytes(i["N"])
    whole = plan(model).needed_bytes(i["N"])
    return {
        "k_full": left.keys_full,
        "v_full": left.values_full,
        "bytes_per_layer": size,
        "fp16_bytes_per_layer": whole,
        "compression_ratio": whole / size,
    }


@case("quant.kivi_on_small_window*")
def kivi_window(i: Inputs) -> Answers:
    groups = find_format(f"kivi2:residual={i['R']}").tokens
    assert groups is not None
    left = quantization.residual(groups, i["N"])
    return {"v_quantised": left.values_grouped, "k_quantised": left.keys_grouped}


@case("quant.kivi*bits*")
def kivi_bits(i: Inputs) -> Answers:
    assert i["meta_bits"] == 32
    return {"effective_bits": float(find_format(f"kivi{i['bits']}:group={i['g']}").effective_bits())}


_SLOTS = {196: "turboquant_k8v4", 134: "turboquant_4bit_nc", 118: "turboquant_k3v4_nc", 102: "turboquant_3bit_nc"}


@case("quant.turboquant.*llama*", "quant.turboquant.*qwen*")
def turboquant_skips(i: Inputs) -> Answers:
    found = find_format(_SLOTS[i["slot"]])
    return {"capacity_ratio": float(quantization.skip_capacity_ratio(found, i["L"], i["skip"], i["D"]))}


@case("quant.turboquant*")
def turboquant(i: Inputs) -> Answers:
    found = find_format(_SLOTS[i["k_bytes"] + i["v_bytes"]])
    slot = quantization.slot_bytes(found, i["D"])
    return {
        "slot_bytes": slot,
        "effective_bits": float(found.effective_bits(i["D"])),
        "vs_bf16_ratio": quantization.slot_bytes(find_format("bf16"), i["D"]) / slot,
    }


@case("quant.llamacpp*")
def llamacpp(i: Inputs) -> Answers:
    name = {34: "q8_0", 24: "q5_1", 22: "q5_0", 20: "q4_1", 18: "q4_0"}[i["block_bytes"]]
    return {"effective_bits": float(find_format(name).effective_bits(i["block"]))}


@case("quant.kvquant*")
def kvquant(i: Inputs) -> Answers:
    share = Fraction(str(i["outlier"]))
    return {"effective_bits": float(quantization.outlier_bits(i["bits"], share, i["sparse_bits"]))}


@case("quant.*")
def scaled(i: Inputs) -> Answers:
    group, metadata = i.get("g", i.get("D")), i.get("scale_bits", i.get("meta_bits"))
    return {"effective_bits": float(quantization.effective_bits(i["bits"], metadata, group))}


@case("evict.pyramidkv*")
def pyramid(i: Inputs) -> Answers:
    asked = parse_techniques(evict=f"pyramidkv:{i['Cap']},window={i['W']},beta={i['beta']}")
    found = apply(dense(i["L"], 8, 128), None, asked, i["N"])
    held = [group.part.stored.count(i["N"]) for group in found.plan.groups for _ in range(group.owners)]
    return {
        "first_layer": held[0],
        "last_layer": held[-1],
        "total_tokens": sum(held),
        "mean_tokens": sum(held) / len(held),
    }


@case("evict.snapkv*")
def snapkv(i: Inputs) -> Answers:
    asked = parse_techniques(evict=f"snapkv:{i['Cap']}")
    model, precision = heads(i), dtype(i["e"])
    after = apply(model, precision, asked, i["N"])
    end = apply(model, precision, asked, i["N"] + i["gen"], generated=i["gen"])
    return {
        "resident_after_prefill": after.plan.groups[0].part.stored.count(i["N"]),
        "resident_at_end": end.plan.groups[0].part.stored.count(i["N"] + i["gen"]),
        "kv_bytes_at_end": end.stored_bytes,
        "peak_prefill_bytes": end.prefill_bytes,
    }


@case("evict.gqa_expansion*")
def expansion(i: Inputs) -> Answers:
    model, precision, n = heads(i), dtype(i["e"]), 8 * i["Cap"]
    copies = apply(model, precision, parse_techniques(evict=f"snapkv:{i['Cap']},per-query-head"), n).stored_bytes
    layout = apply(model, precision, parse_techniques(evict=f"snapkv:{i['Cap']}"), n).stored_bytes
    return {
        "reference_code_bytes": copies,
        "kv_head_layout_bytes": layout,
        "expansion_factor": copies / layout,
    }


@case("evict.h2o*")
def h2o(i: Inputs) -> Answers:
    asked = parse_techniques(evict=f"h2o:{i['heavy']}+{i['recent']}")
    found = apply(dense(1, 8, 128), None, asked, i["N"])
    return {"resident": found.plan.groups[0].part.stored.count(i["N"])}


@case("evict.adakv*")
def adakv(i: Inputs) -> Answers:
    rule = eviction.parse_evict(f"adakv:compression={i['compression']},floor={i['alpha']}")
    found = apply(dense(1, i["Hkv"], 128), None, Techniques(evict=rule), i["N"])
    kept = found.plan.groups[0].part.stored.count(i["N"])
    per_head_entry = token_bytes(dense(1, 1, 128))
    return {
        "kept_per_head": kept,
        "floor_per_head": rule.head_floor(i["N"]),
        "layer_total": found.stored_bytes // per_head_entry,
    }


@case("evict.window_then_budget*")
def window_budget(i: Inputs) -> Answers:
    local = kinds.SlidingWindow(8, 8, 128, i["W"])
    model = spec((1, local), (1, kinds.FullAttention(8, 8, 128)))
    found = apply(model, None, parse_techniques(evict=f"tova:{i['budget']}"), i["N"])
    held = {group.kind: group.part.stored.count(i["N"]) for group in found.plan.groups}
    return {"local_resident": held["sliding_window"], "global_resident": held["full_attention"]}


@case("paging.pool*")
def pool(i: Inputs) -> Answers:
    found = paging.capacity(i["pool"], i["per_token"], i.get("B", 16))
    return {
        "tokens_by_division": found.tokens_by_division,
        "blocks": found.blocks,
        "tokens_in_blocks": found.tokens,
    }


@case("paging.*log*")
def pool_log(i: Inputs) -> Answers:
    token = token_bytes(heads(i), i["e"])
    found = paging.capacity(i["pool"], token, i["B"])
    return {
        "per_token": token,
        "blocks": found.blocks,
        "tokens": found.tokens,
        "max_concurrency_ratio": float(found.concurrency(i["max_len"], i["B"])),
    }


@case("paging.waste*")
def waste(i: Inputs) -> Answers:
    found = paging.expected_waste(i["B"], i["mean_len"], i["groups"])
    return {"waste_tokens": float(found.tokens), "waste_ratio": float(found.share)}


@case("paging.exact*")
def lengths(i: Inputs) -> Answers:
    return {
        "blocks": sum(paging.blocks(n, i["B"]) for n in i["lens"]),
        "waste_tokens": int(paging.exact_waste(i["lens"], i["B"]).tokens),
    }


@case("prefix.shared_system*")
def system_prompt(i: Inputs) -> Answers:
    found = prefix.shared_blocks(i["R"], i["P"], i["T"], i["B"])
    return {"blocks_shared": found.shared, "blocks_unshared": found.unshared}


@case("prefix.*")
def prefix_hit(i: Inputs) -> Answers:
    hit = prefix.hit_tokens(i["N"], i["B"], i.get("shared"))
    return {"hit_tokens": hit, "recomputed": i["N"] - hit}


@case("offload.block*")
def offload_block(i: Inputs) -> Answers:
    ranks = i.get("tp", 1)
    found = plan_cache(heads(i), dtype(i["e"]), ranks=ranks)
    block = i["B"] * int(found.marginal_bytes(1))
    return {"piece_kib": block / (2 * i["L"]) / KIB, "block_mib": block / MIB}


@case("offload.load*")
def offload_load(i: Inputs) -> Answers:
    return {
        "load_us": offload.transfer_seconds(i["bytes_per_token"], i["bw"]) * 1e6,
        "recompute_us": offload.recompute_seconds(i["params"], i["flops"]) * 1e6,
        "breakeven_bw_gbps": offload.break_even_bandwidth(i["bytes_per_token"], i["params"], i["flops"]) / 1e9,
    }


@case("alloc.*")
def alloc(i: Inputs) -> Answers:
    return {"rounded": allocated_bytes(i["req"]), "reserved": reserved_bytes(i["req"])}


@case("mbu.*")
def bandwidth(i: Inputs) -> Answers:
    slope = i["slope_ms"] * 1e-3
    return {
        "bandwidth_tbps": slope_bandwidth(i["bytes_per_token"], slope) / 1e12,
        "mbu_fraction": mbu(i["bytes_per_token"], slope, i["peak"]),
    }


@case("compose.*fp8_global_only*")
def fp8_global(i: Inputs) -> Answers:
    asked = parse_techniques(kv_cache_dtype="fp8", skip_layers="sliding_window")
    return {"kv_bytes": apply(local_global(i), None, asked, i["N"]).stored_bytes}


@case("compose.cla*")
def compose_cla(i: Inputs) -> Answers:
    found = apply(what_if(heads(i), f"cla={i['s']}"), dtype(i["e"]), Techniques(), i["N"])
    assert sharing.owned_layers(i["L"], i["s"]) == sum(group.owners for group in found.plan.groups)
    return {"kv_gib": found.stored_bytes / GIB}


@case("compose.hybrid*")
def compose_hybrid(i: Inputs) -> Answers:
    recurrent_layers = kinds.GatedDelta(16, 128, 32, 128, 4)
    model = spec((i["Lf"], kinds.FullAttention(16, i["Hkv"], i["D"])), (36, recurrent_layers))
    found = apply(model, dtype(i["e"]), Techniques(), i["N"])
    assert found.plan.state_bytes == i["state"]
    return {
        "kv_bytes": found.plan.growing_bytes(i["N"]),
        "total_bytes": found.stored_bytes,
        "state_fraction": found.plan.state_bytes / found.stored_bytes,
    }
