"""Plans of whole models: the printed formula is the arithmetic, and draft layers are marked as such."""

from __future__ import annotations

from kvplan.cache.precision import resolve_precision
from kvplan.cache.size import plan_cache
from kvplan.spec.resolve import registry


def test_the_formula_counts_entries_and_leaves_states_without() -> None:
    (latent,) = plan_cache(registry().get("deepseek-v3"), resolve_precision()).groups
    assert latent.formula(1000) == "61 layers x 1,000 entries x (512 + 64) x 2 B"
    assert latent.formula(1) == "61 layers x 1 entry x (512 + 64) x 2 B"
    conv, state = plan_cache(registry().get("mamba-2.8b"), resolve_precision()).groups
    assert conv.formula(1000) == "64 layers x 3 columns x 5120 inner x 2 B"
    assert state.formula(1000) == "64 layers x 5120 inner x 16 state x 4 B"


def test_draft_layers_are_counted_and_marked_only_when_they_are_asked_for() -> None:
    # The published config has 61 layers and num_nextn_predict_layers 1.
    spec = registry().get("deepseek-v3")
    plain, drafting = plan_cache(spec, resolve_precision()), plan_cache(spec, resolve_precision(), drafting=True)
    assert [(group.label, group.draft, group.owners) for group in plain.groups] == [("mla", False, 61)]
    assert [(group.label, group.draft, group.owners) for group in drafting.groups] == [
        ("mla", False, 61),
        ("draft mla", True, 1),
    ]
    assert (plain.total_layers, drafting.total_layers) == (61, 62)
    # 62 layers x 576 values x 2 B: the 8.72 GiB of FlashMLA's note at 131,072 tokens.
    assert drafting.needed_bytes(131_072) == 131_072 * 62 * 576 * 2
