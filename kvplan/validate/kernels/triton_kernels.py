"""The two Triton kernels of paged split-KV decode. Imported only where triton is, and through `triton_decode`.

One program takes one request, one KV head with a tile of its query heads, and one split of the tokens: keys and values
are loaded once for all those heads. Page offsets are 64-bit, since a page number times a page's values passes 2^31 at
4 GiB of 16-bit values.
"""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def partial_kernel(
    query, key, rope, value, key_scale, value_scale, table, lengths, out, sums,
    scale, page, window, splits,
    query_b, query_h, key_p, key_s, key_h, rope_p, rope_s, value_p, value_s, value_h,
    ks_p, ks_s, ks_h, vs_p, vs_s, vs_h, table_b, out_b, out_h, out_s, sums_b, sums_h,
    GROUP: tl.constexpr, HEADS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, R: tl.constexpr, R_PAD: tl.constexpr,
    V: tl.constexpr, V_PAD: tl.constexpr, SHARED: tl.constexpr,
    KEY_RUN: tl.constexpr, VALUE_RUN: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // TILES
    split = tl.program_id(2)
    length = tl.load(lengths + number)
    first = length * 0
    if window > 0:
        first = tl.maximum(length - window, 0)
    chunk = tl.cdiv(tl.cdiv(length - first, splits), TILE) * TILE
    begin = tl.minimum(first + split * chunk, length)
    end = tl.minimum(begin + chunk, length)

    rows = (tl.program_id(1) % TILES) * HEADS + tl.arange(0, HEADS)
    row_ok = rows < GROUP
    heads = kv_head * GROUP + rows
    d = tl.arange(0, D_PAD)
    v = tl.arange(0, V_PAD)
    q = tl.load(query + number * query_b + heads[:, None] * query_h + d[None, :],
                mask=row_ok[:, None] & (d[None, :] < D), other=0.0)  # fmt: skip
    compute = tl.float32 if UPCAST else q.dtype
    q = q.to(compute)
    if R > 0:
        r = tl.arange(0, R_PAD)
        q_rope = tl.load(query + number * query_b + heads[:, None] * query_h + D + r[None, :],
                         mask=row_ok[:, None] & (r[None, :] < R), other=0.0).to(compute)  # fmt: skip
    best = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, V_PAD], tl.float32)
    for at in range(begin, end, TILE):
        t = at + tl.arange(0, TILE)
        ok = t < end
        block = tl.load(table + number * table_b + t // page, mask=ok, other=0).to(tl.int64)
        slot = (t % page).to(tl.int64)
        k = tl.load(key + (block * key_p + slot * key_s + kv_head * key_h)[:, None] + d[None, :],
                    mask=ok[:, None] & (d[None, :] < D), other=0.0)  # fmt: skip
        if KEY_RUN > 0:
            ks = tl.load(key_scale + (block * ks_p + slot * ks_s + kv_head * ks_h)[:, None] + (d // KEY_RUN)[None, :],
                         mask=ok[:, None] & (d[None, :] < D), other=0.0)  # fmt: skip
            k = k.to(tl.float32) * ks
        k = k.to(compute)
        score = tl.dot(q, tl.trans(k), input_precision="ieee")
        if R > 0:
            kr = tl.load(rope + (block * rope_p + slot * rope_s)[:, None] + r[None, :],
                         mask=ok[:, None] & (r[None, :] < R), other=0.0).to(compute)  # fmt: skip
            score += tl.dot(q_rope, tl.trans(kr), input_precision="ieee")
        score = tl.where(ok[None, :], score * scale, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        shrink = tl.exp(best - higher)
        p = tl.exp(score - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        if SHARED:
            w = k
        else:
            w = tl.load(value + (block * value_p + slot * value_s + kv_head * value_h)[:, None] + v[None, :],
                        mask=ok[:, None] & (v[None, :] < V), other=0.0)  # fmt: skip
            if VALUE_RUN > 0:
                vs = tl.load(
                    value_scale + (block * vs_p + slot * vs_s + kv_head * vs_h)[:, None] + (v // VALUE_RUN)[None, :],
                    mask=ok[:, None] & (v[None, :] < V), other=0.0)  # fmt: skip
                w = w.to(tl.float32) * vs
            w = w.to(compute)
        acc = acc * shrink[:, None] + tl.dot(p.to(compute), w, input_precision="ieee")
        best = higher
    # An empty split leaves total 0: its log-sum is -inf and its output 0, so that the merge passes over it.
    empty = total == 0.0
    acc = acc / tl.where(empty, 1.0, total)[:, None]
    log_sum = tl.where(empty, float("-inf"), best + tl.log(tl.where(empty, 1.0, total)))
    tl.store(out + number * out_b + heads[:, None] * out_h + split * out_s + v[None, :], acc,
             mask=row_ok[:, None] & (v[None, :] < V))  # fmt: skip
    tl.store(sums + number * sums_b + heads * sums_h + split, log_sum, mask=row_ok)


@triton.jit
def merge_kernel(
    parts, sums, sinks, out, splits,
    parts_b, parts_h, parts_s, sums_b, sums_h, out_b, out_h,
    V: tl.constexpr, V_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    s = tl.arange(0, SPLITS_PAD)
    v = tl.arange(0, V_PAD)
    log_sums = tl.load(sums + number * sums_b + head * sums_h + s, mask=s < splits, other=float("-inf"))
    best = tl.max(log_sums, 0)
    if SINKS:
        sink = tl.load(sinks + head)
        best = tl.maximum(best, sink)
    best = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp(log_sums - best)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp(sink - best)
    pieces = tl.load(parts + number * parts_b + head * parts_h + s[:, None] * parts_s + v[None, :],
                     mask=(s[:, None] < splits) & (v[None, :] < V), other=0.0)  # fmt: skip
    merged = tl.sum(pieces * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + number * out_b + head * out_h + v, merged.to(out.dtype.element_ty), mask=v < V)
