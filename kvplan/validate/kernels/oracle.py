"""The right answer: pages gathered into contiguous fp32 keys and values, then torch's own attention."""

from __future__ import annotations

from typing import Any

from kvplan.validate.kernels.problem import Decode, dequantized


def gather(problem: Decode, number: int, begin: int, end: int) -> tuple[Any, Any]:
    """Tokens `begin` to `end` of request `number`: keys and values fp32 [tokens, KV heads, width]."""
    torch = problem.torch
    positions = torch.arange(begin, end, device=problem.key.device)
    blocks = problem.table[number].to(torch.int64)[positions // problem.page]
    slots = positions % problem.page

    def of(pages: Any) -> Any:
        # 8-bit floats have no indexing of their own on every backend: gather their bytes.
        raw = pages.view(torch.uint8) if pages.element_size() == 1 else pages
        return raw[blocks, slots].view(pages.dtype)

    key_scale = None if problem.key_scale is None else of(problem.key_scale)
    key = dequantized(torch, of(problem.key), key_scale)
    if problem.shared:
        value = key[..., : problem.value_width]
    else:
        value_scale = None if problem.value_scale is None else of(problem.value_scale)
        value = dequantized(torch, of(problem.value), value_scale)
    if problem.rope is not None:
        key = torch.cat((key, of(problem.rope).to(torch.float32)), dim=-1)
    return key, value


def sdpa(problem: Decode) -> Any:
    """The output of every request, fp32 [batch, query heads, value width], through scaled_dot_product_attention."""
    torch = problem.torch
    rows = []
    for number in range(int(problem.lengths.numel())):
        begin, end = problem.span(number)
        key, value = gather(problem, number, begin, end)
        key, value = key.transpose(0, 1), value.transpose(0, 1)
        # The query heads of a KV head stand where query tokens would: no copy of K and V for each of them.
        query = problem.query[number].to(torch.float32).reshape(problem.kv_heads, problem.group, -1)
        mask = None
        if problem.sinks is not None:
            # A sink is one more key of score 0 (a zero vector) that the mask lifts to its logit, with a zero value.
            key = torch.nn.functional.pad(key, (0, 0, 0, 1))
            value = torch.nn.functional.pad(value, (0, 0, 0, 1))
            mask = torch.zeros((*query.shape[:2], key.shape[1]), device=key.device)
            mask[:, :, -1] = problem.sinks.to(torch.float32).reshape(query.shape[:2])
        out = torch.nn.functional.scaled_dot_product_attention(
            query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0),
            attn_mask=None if mask is None else mask.unsqueeze(0), scale=problem.scale,
        )  # fmt: skip
        rows.append(out[0].reshape(-1, problem.value_width))
    return torch.stack(rows)
