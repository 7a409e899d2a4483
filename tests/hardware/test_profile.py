"""A device profile survives its file, and a bad one names the field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.hardware.profile import (
    AttentionProfile,
    DeviceProfile,
    GemmProfile,
    LinkProfile,
    load_profile,
    save_profile,
)

PROFILE = DeviceProfile(
    schema_version=1, device="a card", kind="cuda", recorded="2026-11-29T00:00:00+00:00", how="made up for a test",
    total_bytes=100, usable_bytes=90, copy_bytes_per_second=4e12, read_bytes_per_second=4.1e12,
    context_bytes=0, attention=(AttentionProfile("K+V", "fp8", 1e-5, 3e12, 0.75),),
    gemm=(GemmProfile(1, 4096, 4096, 1e12),), links=(LinkProfile("host to device", 1e-5, 5e10),),
    versions={"torch": "2.13.0"},
)  # fmt: skip


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    save_profile(path, PROFILE)
    assert load_profile(path) == PROFILE
    bare = replace(PROFILE, attention=(), gemm=(), links=(), versions={}, context_bytes=None)
    save_profile(path, bare)
    assert load_profile(path) == bare


def test_what_was_measured_is_found_by_name() -> None:
    line = PROFILE.attention_line("fp8")
    assert line is not None and line.bytes_per_second == 3e12
    assert PROFILE.attention_line("bf16") is None
    assert PROFILE.attention_line("fp8", "latent") is None
    link = PROFILE.link("host to device")
    assert link is not None and link.latency_seconds == 1e-5
    assert PROFILE.link("device to host") is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("usable_bytes: 90", "usable_bytes: -1", "usable_bytes: found -1"),
        ("usable_bytes: 90", "usable_bytes: '90'", "usable_bytes: found '90'"),
        (
            "copy_bytes_per_second: 4000000000000.0",
            "copy_bytes_per_second: .inf",
            "copy_bytes_per_second: found Infinity",
        ),
        ("copy_bytes_per_second: 4000000000000.0", "copy_bytes_per_second: .nan", "copy_bytes_per_second: found NaN"),
        ("schema_version: 1", "schema_version: 2", "schema_version: found 2"),
        ("t0_seconds: 1.0e-05", "t0_seconds: -1.0", "attention.0.t0_seconds: found -1.0"),
        ("kind: cuda", "kind: tpu", "kind: found 'tpu'"),
        ("kind: cuda", "kind: cuda\nsurprise: 1", "surprise"),
        ("name: host to device", "name: sideways", "links.0.name: found 'sideways'"),
    ],
)
def test_a_bad_profile_names_the_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "card.yaml"
    save_profile(path, PROFILE)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_profile(path)


@pytest.mark.parametrize("text", ["", "- 1\n", "just words", "a: &x 1\nb: *x\n"])
def test_what_is_no_profile_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        load_profile(path)


def test_nothing_half_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be written"):
        save_profile(tmp_path / "no" / "folder.yaml", PROFILE)
    assert list(tmp_path.iterdir()) == []
