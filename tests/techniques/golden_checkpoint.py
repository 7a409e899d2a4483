"""Golden cases of what a checkpoint fixes: heads, sharing, windows, MLA, hybrids, compressed attention."""

from __future__ import annotations

from fractions import Fraction

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import CachePlan, plan_cache
from kvplan.cache.techniques import (
    apply,
    compressed,
    paging,
    parse_techniques,
    prefix,
    quantization,
    recurrent,
    what_if,
    windows,
)
from kvplan.cache.techniques.flops import decode_flops
from kvplan.spec import layers as kinds
from kvplan.spec.model import ModelSpec
from kvplan.units import GIB, MIB
from tests.techniques.golden_case import Answers, Inputs, case, dtype, heads, local_global, plan, token_bytes
from tests.techniques.shapes import dense, spec


@case("gqa.tp*")
def gqa_replication(i: Inputs) -> Answers:
    ranks = plan_cache(heads(i), dtype(i["e"]), ranks=i["tp"])
    each, whole = ranks.needed_bytes(i["N"]), plan(heads(i), i["e"]).needed_bytes(i["N"])
    return {
        "kv_bytes_per_rank": each,
        "kv_bytes_all_ranks": each * i["tp"],
        "replication_factor": each * i["tp"] / whole,
    }


@case("gqa.*", "hybrid.mixtral*")
def gqa(i: Inputs) -> Answers:
    model = heads(i)
    size = plan(model, i["e"]).needed_bytes(i["N"])
    return {"bytes_per_token": token_bytes(model, i["e"]), "kv_bytes": size, "kv_gib": size / GIB}


@case("cla.cla*")
def cla(i: Inputs) -> Answers:
    shared = what_if(heads(i), f"cla={i['s']}")
    found = plan(shared, i["e"])
    return {"caches": sum(group.owners for group in found.groups), "kv_bytes": found.needed_bytes(i["N"])}


@case("cla.hunyuan*")
def cla_mha(i: Inputs) -> Answers:
    shared = token_bytes(what_if(heads(i), f"cla={i['s']}"), i["e"])
    mha = token_bytes(what_if(heads(i), f"kv-heads={i['Hq']}"), i["e"])
    return {"bytes_per_token": shared, "mha_bytes_per_token": mha, "kept_fraction": shared / mha}


@case("cla.yoco*")
def yoco(i: Inputs) -> Answers:
    found = plan(what_if(heads(i), f"yoco={i['W']}"), i["e"])
    size = {group.kind: group.stored_bytes(i["N"]) for group in found.groups if group.owners}
    return {
        "local_bytes": size["sliding_window"],
        "global_bytes": size["full_attention"],
        "kv_bytes": found.needed_bytes(i["N"]),
    }


@case("cla.gemma3n*")
def gemma3n(i: Inputs) -> Answers:
    full = kinds.FullAttention(8, i["Hkv"], i["D"])
    local = kinds.SlidingWindow(8, i["Hkv"], i["D"], i["W"])
    period = i["L"] // (i["L"] // (i["own_local"] // i["own_global"] + 1))
    every = spec(*[(1, full if number % period == period - 1 else local) for number in range(i["L"])])
    names = ["global" if number % period == period - 1 else "local" for number in range(i["L"])]
    whole = ModelSpec(
        "case", "case", "bfloat16", {"global": full, "local": local}, tuple(names), every.provenance,
    )  # fmt: skip
    shared = what_if(whole, f"owners=0-{i['L'] - i['shared'] - 1}")
    found = plan(shared, i["e"])
    return {
        "owned": sum(group.owners for group in found.groups),
        "kv_bytes": found.needed_bytes(i["N"]),
        "kv_bytes_without_sharing": plan(every, i["e"]).needed_bytes(i["N"]),
    }


@case("window.streamingllm*")
def streaming(i: Inputs) -> Answers:
    asked = parse_techniques(evict=f"streamingllm:{i['sink']}+{i['recent']}")
    found = apply(heads(i), dtype(i["e"]), asked, i["N"])
    law = found.plan.groups[0].part.stored
    return {"resident": law.count(i["N"]), "kv_bytes": found.stored_bytes, "kv_gib": found.stored_bytes / GIB}


@case("window.vllm_pool_blocks*")
def pool_blocks(i: Inputs) -> Answers:
    return {"blocks": paging.window_blocks(i["W"], i["B"], i["inflight"], i["max_len"])}


@case("window.vllm_doc_example*")
def doc_example(i: Inputs) -> Answers:
    full, local = paging.blocks(i["N"], i["B"]), paging.blocks(min(i["N"], i["W"]), i["B"])
    return {"blocks": i["full_groups"] * full + i["win_groups"] * local}


@case("window.*group_padding*")
def group_padding(i: Inputs) -> Answers:
    groups = paging.padded_groups(i["win_layers"], i["group"])
    page = i["B"] * token_bytes(dense(i["group"], i["Hkv"], i["D"]), i["e"])
    billed = groups.groups * i["group"]
    return {
        "win_groups": groups.groups,
        "page_bytes": page,
        "padding_layers": groups.padding,
        "window_overhead_factor": billed / i["win_layers"],
    }


@case("window.llamacpp*")
def cells(i: Inputs) -> Answers:
    return {"cells": paging.window_cells(i["n_ctx"], i["n_swa"], i["streams"], i["n_ubatch"])}


@case("window.*chunked*")
def chunked(i: Inputs) -> Answers:
    held = windows.chunk_resident(i["N"], i["Cn"])
    full, chunk = dense(i["Lg"], i["Hkv"], i["D"]), dense(i["Lc"], i["Hkv"], i["D"])
    size = plan(full, i["e"]).needed_bytes(i["N"]) + plan(chunk, i["e"]).needed_bytes(held)
    return {"chunk_tokens": held, "kv_bytes": size}


@case("window.*")
def window(i: Inputs) -> Answers:
    size = plan(local_global(i), i["e"]).needed_bytes(i["N"])
    everywhere = plan(dense(i["Lg"] + i["Ll"], i["Hkv"], i["D"]), i["e"])
    return {
        "per_layer_token": token_bytes(dense(1, i["Hkv"], i["D"]), i["e"]),
        "kv_bytes": size,
        "kv_gib": size / GIB,
        "kv_mib": size / MIB,
        "all_global_bytes": everywhere.needed_bytes(i["N"]),
        "all_global_gib": everywhere.needed_bytes(i["N"]) / GIB,
        "kept_fraction": size / everywhere.needed_bytes(i["N"]),
    }


def latents(layers: int, width: int, rope: int, query_heads: int = 128) -> ModelSpec:
    return spec((layers, kinds.LatentAttention(query_heads, width, rope)))


@case("mla.fp8_656*")
def mla_record(i: Inputs) -> Answers:
    precision = resolve_precision("fp8_ds_mla")
    found = plan_cache(latents(i["L"], i["nope"], i["rope"]), precision).groups[0].part.entry_bytes
    plain = plan(latents(1, i["nope"], i["rope"])).groups[0].part.entry_bytes
    return {
        "record_bytes": found,
        "bytes_per_token": i["L"] * found,
        "effective_bits": 8 * found / (i["nope"] + i["rope"]),
        "vs_bf16_ratio": found / plain,
    }


def v32(layers: int, top_k: int = 2048) -> ModelSpec:
    return spec((layers, kinds.LatentAttention(128, 512, 64, indexer=kinds.Indexer(128, top_k, 64))))


@case("mla.v32_with_indexer*")
def mla_indexer(i: Inputs) -> Answers:
    assert (i["rec"], i["idx"]) == (656, 132)
    found = plan(v32(i["L"]), 1)
    return {"bytes_per_token": int(found.marginal_bytes(1)), "kv_bytes": found.needed_bytes(i["N"])}


@case("mla.v32_read*")
def mla_reads(i: Inputs) -> Answers:
    found = plan(v32(1, i["topk"]), 1)
    dense_read = found.groups[0].stored_bytes(i["N"])
    read = found.read_bytes(i["N"])
    return {"read_bytes_per_layer": read, "dense_read_bytes": dense_read, "read_ratio": read / dense_read}


@case("mla.deepseek_v2*")
def mla_saving(i: Inputs) -> Answers:
    rope = 64
    elements = token_bytes(latents(i["L"], i["d"] - rope, rope)) // 2
    other = token_bytes(dense(i["L67"], i["Hkv67"], i["D67"])) // 2
    bits = quantization.effective_bits(i["bits"], 0, 1)
    return {
        "elements": elements,
        "elements67": other,
        "saving_6bit_fraction": float(1 - elements * bits / (other * 16)),
        "saving_16bit_fraction": 1 - elements / other,
    }


@case("mla.tp*")
def mla_ranks(i: Inputs) -> Answers:
    rope = 64
    ranks = plan_cache(latents(i["L"], i["d"] - rope, rope), dtype(i["e"]), ranks=i["tp"])
    each = int(ranks.marginal_bytes(1))
    return {"per_rank_bytes_per_token": each, "all_ranks_bytes_per_token": each * i["tp"]}


@case("mla.*")
def mla(i: Inputs) -> Answers:
    found = plan(latents(i["L"], i["dc"], i["dr"]), i["e"])
    size = found.needed_bytes(i["N"])
    return {"bytes_per_token": int(found.marginal_bytes(1)), "kv_bytes": size, "kv_gib": size / GIB}


def state_dtype(value_bytes: int) -> str:
    return {4: "float32", 2: "bfloat16"}[value_bytes]


def hybrid(model: ModelSpec, value_bytes: int, state_bytes: int) -> CachePlan:
    kv = {1: "fp8", 2: "bf16"}[value_bytes]
    return plan_cache(model, resolve_precision(kv, state=state_dtype(state_bytes)))


@case("hybrid.jamba*")
def jamba(i: Inputs) -> Answers:
    mamba = kinds.Mamba1(i["d_inner"], i["d_state"], i["k"])
    model = spec((i["La"], kinds.FullAttention(32, i["Hkv"], i["D"])), (i["Lm"], mamba))
    found = hybrid(model, i["e"], i["e_ssm"])
    grown = found.growing_bytes(i["N"])
    return {
        "kv_bytes": grown,
        "kv_gib": grown / GIB,
        "state_bytes": found.state_bytes,
        "total_bytes": found.needed_bytes(i["N"]),
    }


def delta(i: Inputs) -> kinds.GatedDelta:
    return kinds.GatedDelta(i["Hk"], i["dk"], i["Hv"], i["dv"], i["k"])


@case("hybrid.qwen3_next*")
def qwen3_next(i: Inputs) -> Answers:
    full = kinds.FullAttention(16, i["Hkv"], i["D"])
    found = hybrid(spec((i["Lf"], full), (i["Ll"], delta(i))), i["e"], i["e_rec"])
    grown = found.growing_bytes(i["N"])
    everywhere = plan(spec((i["Lf"] + i["Ll"], full)), i["e"]).needed_bytes(i["N"])
    conv = hybrid(spec((1, delta(i))), i["e"], i["e_rec"]).groups[0].part.entry_bytes
    return {
        "kv_bytes": grown,
        "kv_gib": grown / GIB,
        "all_attention_gib": everywhere / GIB,
        "conv_dim": conv // (i["e_conv"] * (i["k"] - 1)),
        "state_bytes_per_layer": found.state_bytes // i["Ll"],
        "state_bytes": found.state_bytes,
    }


@case("hybrid.kimi*")
def kimi(i: Inputs) -> Answers:
    model = spec((i["La"], kinds.LatentAttention(32, i["d"] - 64, 64)), (i["Lk"], kinds.Kda(i["H"], i["hd"], i["k"])))
    found = hybrid(model, i["e"], i["e_rec"])
    everywhere = plan(latents(i["La"] + i["Lk"], i["d"] - 64, 64), i["e"])
    grown = found.growing_bytes(i["N"])
    kept = grown / everywhere.needed_bytes(i["N"])
    return {"kv_bytes": grown, "state_bytes": found.state_bytes, "kept_fraction": kept}


@case("hybrid.minimax*")
def minimax(i: Inputs) -> Answers:
    model = spec((i["La"], kinds.FullAttention(64, i["Hkv"], i["D"])), (i["Ll"], kinds.Lightning(i["H"], i["hd"])))
    found = hybrid(model, i["e"], i["e_state"])
    return {"state_bytes": found.state_bytes, "kv_bytes": found.growing_bytes(i["N"])}


@case("hybrid.mamba2*")
def mamba2(i: Inputs) -> Answers:
    layer = kinds.Mamba2(i["H"], i["hd"], i["S"], i["Gn"], i["k"])
    model = spec((i["La"], kinds.FullAttention(32, i["Hkv"], i["D"])), (i["Lm"], layer))
    found = hybrid(model, i["e"], i["e_ssm"])
    conv = hybrid(spec((1, layer)), i["e"], i["e_ssm"]).groups[0].part.entry_bytes
    return {
        "conv_dim": conv // (i["e_conv"] * (i["k"] - 1)),
        "state_bytes_per_layer": found.state_bytes // i["Lm"],
        "state_bytes": found.state_bytes,
        "kv_bytes_per_token": int(found.marginal_bytes(1)),
    }


@case("hybrid.qwen35*")
def qwen35(i: Inputs) -> Answers:
    state = hybrid(spec((1, delta(i))), i["e"], i["e_rec"]).state_bytes
    token = token_bytes(dense(1, i["Hkv"], i["D"]), i["e"])
    page = recurrent.couple_pages(state, token, i["align"])
    groups = paging.padded_groups(i["Lf"] + i["Ll"], i["Lf"]).groups
    pool = paging.capacity(i["pool"], i["Lf"] * token, page.block_tokens)
    states = prefix.state_checkpoints(i["max_len"], page.block_tokens, "align")
    assert states == i["state_blocks_per_req"]
    need = paging.blocks(i["max_len"], page.block_tokens) + (groups - 1) * states
    concurrency = Fraction(pool.blocks, need)
    return {
        "state_page": state,
        "attn_token": token,
        "block_tokens": page.block_tokens,
        "page_bytes": page.page_bytes,
        "padding_ratio": page.padding,
        "groups": groups,
        "num_blocks": pool.blocks,
        "blocks_per_req": need,
        "max_concurrency_ratio": float(concurrency),
        "reported_tokens": int(concurrency * i["max_len"]),
    }


def v4(c4: int, c128: int, swa: int, window: int, heads: int = 128, top_k: int = 1024) -> ModelSpec:
    def layer(ratio: int | None) -> kinds.CompressedSparse:
        indexer = kinds.Indexer(128, top_k, 64) if ratio == 4 else None
        return kinds.CompressedSparse(heads, 512, 64, window, ratio, ratio == 4, indexer)

    return spec((c4, layer(4)), (c128, layer(128)), (swa, layer(None)))


def v4_plan(i: Inputs) -> CachePlan:
    kv = {1024: 2, 584: 1}[i["ent"]]
    return plan(v4(i["c4"], i["c128"], i["swa"], i["W"]), kv, {256: "bf16", 132: "fp8", 68: "fp4"}[i["idx"]])


@case("csa.v32*")
def csa_v32(i: Inputs) -> Answers:
    assert i["rec"] == 1152
    found = plan(v32(i["L"]), 2, {256: "bf16", 132: "fp8"}[i["idx"]])
    return {"kv_gib": found.needed_bytes(i["N"]) / GIB}


@case("csa.*vllm_pages*")
def csa_pages(i: Inputs) -> Answers:
    found = plan(v4(1, 1, 0, 128), 1)
    entry = {group.part.name: group.part.entry_bytes for group in found.groups}
    assert (entry["compressed"], entry["index keys"]) == (i["ent"], i["idx"])
    page = paging.aligned_page(i["B"] // 128, entry["compressed"], i["al"])
    return {
        "c4_page": paging.aligned_page(i["B"] // 4, entry["compressed"], i["al"]),
        "indexer_page": paging.aligned_page(i["B"] // 4, entry["index keys"], i["al"]),
        "c128_page": page,
        "c128_padding_ratio": page / paging.aligned_page(i["B"] // 128, entry["compressed"], 1),
    }


@case("csa.*compressor_state*")
def csa_state(i: Inputs) -> Answers:
    return {
        "c4_layer": plan(v4(1, 0, 0, 128)).state_bytes,
        "c128_layer": plan(v4(0, 1, 0, 128)).state_bytes,
        "state_bytes": plan(v4(i["c4"], i["c128"], 0, 128)).state_bytes,
    }


@case("csa.*flops*")
def csa_flops(i: Inputs) -> Answers:
    core, index = Fraction(i["w_core"]), Fraction(i["w_idx"])
    new = decode_flops(
        plan(v4(i["c4"], i["c128"], i["swa"], i["W"], i["H"], i["k"]), 1), i["N"], int(i["act"]), core, index
    )
    old = decode_flops(plan(v32(i["L32"], i["k32"]), 1), i["N"], int(i["act32"]), core)
    return {
        "idx": float(new.index),
        "core": float(new.core),
        "lin": new.linear,
        "idx32": float(old.index),
        "core32": float(old.core),
        "lin32": old.linear,
        "flops_ratio": float(new.total / old.total),
    }


@case("csa.nsa*")
def nsa(i: Inputs) -> Answers:
    reads = compressed.nsa(i["N"], i["stride"], i["nblk"], i["blk"], i["W"])
    return {"read_tokens": reads.read_tokens, "speedup_ratio": float(reads.speedup)}


@case("csa.moba*")
def moba(i: Inputs) -> Answers:
    reads = compressed.moba(i["N"], i["blk"], i["k"])
    return {"skipped_fraction": 1 - reads.read_tokens / reads.dense_tokens}


@case("csa.*")
def csa(i: Inputs) -> Answers:
    found = v4_plan(i)
    size = found.growing_bytes(i["N"])
    answers = {"kv_bytes": size, "kv_gib": size / GIB}
    if "L32" in i:
        assert (i["rec32"], i["idx32"]) == (656, 132)
        other = plan(v32(i["L32"]), 1).needed_bytes(i["N"])
        answers |= {"v32_bytes": other, "kept_fraction": size / other}
    return answers
