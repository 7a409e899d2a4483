"""Accelerator data and look-up. Driver totals are what nvidia-smi prints on the device (public printouts)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.hardware.accelerators import Accelerator, all_accelerators, find, names, validate

MIB = 1024 * 1024

# The right-hand column of nvidia-smi's memory usage, in MiB.
DRIVER_MIB = {
    "t4": 15360,
    "a10g": 23028,
    "l4": 23034,
    "a40": 46068,
    "l40s": 46068,
    "rtx-a6000": 49140,
    "rtx-3090": 24576,
    "rtx-4090": 24564,
    "rtx-5090": 32607,
    "a100-40gb": 40960,
    "a100": 81920,
    "h20": 97871,
    "h100": 81559,
    "h100-pcie": 81559,
    "h100-nvl": 95830,
    "h200": 143771,
    "b200": 183359,
    "b300": 275040,
    "gb200": 189471,
    "gb300": 284208,
    "rtx-pro-6000-server": 97887,
}

# What people type, and what nvidia-smi or a Kubernetes product label prints.
SPELLINGS = {
    "h100": "H100-SXM5",
    "H100 80GB": "H100-SXM5",
    "NVIDIA H100 80GB HBM3": "H100-SXM5",
    "NVIDIA-H100-80GB-HBM3": "H100-SXM5",
    "h100_sxm": "H100-SXM5",
    "H100-PCIE": "H100-PCIe",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "h100-nvl": "H100-NVL",
    "h200": "H200-SXM",
    "H200 141GB": "H200-SXM",
    "a100": "A100-SXM4-80GB",
    "nvidia-a100-80gb": "A100-SXM4-80GB",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "a100-40gb": "A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe": "A100-PCIe-80GB",
    "l4": "L4",
    "L40S": "L40S",
    "A10G 24GB": "A10G",
    "Tesla T4": "T4",
    "b200": "B200-SXM",
    "gb200": "GB200 (per GPU)",
    "NVIDIA GH200 480GB": "GH200-96GB",
    "4090": "RTX 4090",
    "rtx-4090": "RTX 4090",
    "NVIDIA GeForce RTX 3090": "RTX 3090",
    "NVIDIA RTX 6000 Ada Generation": "RTX 6000 Ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTX PRO 6000 Blackwell Server",
    "NVIDIA GB10": "DGX Spark (GB10)",
    "mi300x": "MI300X",
    "AMD_Instinct_MI300X_OAM": "MI300X",
    "tpu-v5e": "TPU v5e",
    "TPU v6e": "TPU v6e (Trillium)",
    "Apple M1 Ultra": "M1 Ultra",
}


def test_every_device_is_there_and_valid() -> None:
    assert len(all_accelerators()) == 93
    validate()


@pytest.mark.parametrize(("name", "mib"), DRIVER_MIB.items())
def test_driver_total(name: str, mib: int) -> None:
    device = find(name)
    assert device.memory_bytes_driver == mib * MIB
    assert device.memory_bytes == mib * MIB
    assert f"{mib:,} MiB" in device.memory_source


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_spelling(spelling: str, name: str) -> None:
    assert find(spelling).name == name


@pytest.mark.parametrize("device", all_accelerators(), ids=lambda device: device.slug)
def test_slug_name_and_aliases_lead_home_in_any_case(device: Accelerator) -> None:
    for name in (device.slug, device.name, *device.aliases):
        assert find(name) is device
        assert find(name.upper()) is device
        assert find(f"  {name.lower()} ") is device


def test_completion_offers_slugs_and_aliases() -> None:
    assert {"h100", "h100-sxm-80gb", "rtx-4090", "tpu-v5e"} <= set(names())
    assert len(set(names())) == len(names())


def test_no_two_devices_share_a_name_or_an_alias() -> None:
    spellings = Counter(
        spelling
        for device in all_accelerators()
        for spelling in {name.lower().replace(" ", "-") for name in (device.slug, device.name, *device.aliases)}
    )
    assert [spelling for spelling, count in spellings.items() if count > 1] == []


def test_units_of_the_h100() -> None:
    """NVIDIA H100 data sheet: 3.35 TB/s, 989 and 1,979 dense TFLOPS, PCIe 5.0 x16 at 64 GB/s, NVLink 900 GB/s."""
    device = find("h100")
    assert device.memory_bytes_marketing == 80 * 10**9
    assert device.memory_bandwidth == pytest.approx(3.35e12)
    assert device.bf16_flops == pytest.approx(989e12)
    assert device.fp8_flops == pytest.approx(1979e12)
    assert device.fp4_flops is None
    assert device.pcie_bandwidth == pytest.approx(64e9)
    assert device.device_link_bandwidth == pytest.approx(900e9)
    assert device.c2c_bandwidth is None
    assert find("gh200-96gb").c2c_bandwidth == pytest.approx(900e9)
    assert find("b200").fp4_flops == pytest.approx(9e15)


def test_the_server_card_is_slower_than_the_workstation_card() -> None:
    """NVIDIA product pages: 1,597 GB/s for the server edition, 1,792 GB/s for the workstation edition."""
    assert find("rtx-pro-6000-server").memory_bandwidth == pytest.approx(1597e9)
    assert find("rtx-pro-6000-workstation").memory_bandwidth == pytest.approx(1792e9)


def test_without_a_driver_total_the_size_as_sold_is_planned_with() -> None:
    device = find("mi325x")
    assert device.memory_bytes_driver is None
    assert device.memory_bytes == device.memory_bytes_marketing == 256 * 10**9
    assert "as sold" in device.memory_source
    assert "shared with the CPU" in find("m3-ultra").memory_source
    assert "recalled" in find("mi300x").memory_source


@pytest.mark.parametrize("device", all_accelerators(), ids=lambda device: device.slug)
def test_figures_are_plausible_beside_each_other(device: Accelerator) -> None:
    assert device.source
    if device.memory_mib_driver is not None:
        # A "GB" on the box is 10^9 or 2^30 bytes, less what ECC and the firmware keep.
        assert 0.92 * device.memory_gb * 10**9 < device.memory_mib_driver * MIB <= device.memory_gb * 2**30 * 1.02
    if device.fp8_flops is not None and device.bf16_flops is not None:
        assert 1 <= device.fp8_flops / device.bf16_flops <= 4
    if device.fp4_flops is not None and device.fp8_flops is not None:
        assert 1 <= device.fp4_flops / device.fp8_flops <= 4.1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h10", ["unknown device 'h10'", "nearest:", "h100"]),
        ("rtx-9070", ["unknown device", "rx-9070-xt"]),
        ("v100", ["several devices", "v100-sxm-16gb", "v100-sxm-32gb"]),
        ("GH200", ["several devices", "gh200-96gb", "gh200-144gb"]),
        ("RTX PRO 6000 96GB", ["several devices", "rtx-pro-6000-server", "rtx-pro-6000-workstation"]),
        ("h100-40gb", ["unknown device", "h100"]),
        ("", ["unknown device ''"]),
        ("nvidia", ["unknown device"]),
        ("x" * 100_000, ["unknown device"]),
    ],
)
def test_unknown_or_ambiguous_name(name: str, expected: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        find(name)
    message = str(caught.value)
    assert message.startswith("--gpu: ")
    assert all(part in message for part in expected)
    assert len(message) < 400
    assert caught.value.exit_code == 2


@given(st.text(max_size=40))
def test_any_text_is_found_or_refused_in_one_sentence(name: str) -> None:
    try:
        assert find(name) in all_accelerators()
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("memory_gb: 80\n  memory_gb: 81", "twice"),
        ("memory_gb: -1", "x.memory_gb: found -1"),
        ("memory_gb: '80'", "x.memory_gb: found '80'"),
        ("memory_gb: 80\n  colour: green", "x.colour"),
        ("memory_gb: 80\n  fp8_tflops: .nan", "x.fp8_tflops"),
        ("memory_gb: [80]", "x.memory_gb: found [80]"),
    ],
)
def test_validate_names_the_field_at_fault(tmp_path: Path, change: str, expected: str) -> None:
    fields = (
        "name: X",
        "vendor_class: v",
        "memory_gb: 80",
        "memory_type: HBM",
        "memory_bandwidth_gbs: 1",
        "source: [s]",
    )
    good = "x:\n" + "".join(f"  {field}\n" for field in fields)
    path = tmp_path / "devices.yaml"
    path.write_text(good)
    validate(path)
    path.write_text(good.replace("memory_gb: 80", change))
    with pytest.raises(InputError) as caught:
        validate(path)
    assert expected in str(caught.value)


def test_look_up_needs_no_pydantic() -> None:
    script = (
        "import sys; from kvplan.hardware.accelerators import find; find('h100');"
        "print(sorted({'pydantic', 'numpy', 'torch', 'rich', 'typer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
