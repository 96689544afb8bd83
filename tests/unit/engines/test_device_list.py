"""The text of `lamina devices`: a table of at most 100 columns, problems below it, all details."""

import pytest

from lamina.cli.device_list import details_text, devices_text
from lamina.engines.engine import Device

CPU = Device(
    *("cpu", "Ryzen 9", 64 << 30),
    name="Ryzen 9",
    compute_units=32,
    has_float64=True,
    has_tf32=False,
)
RADEON = Device(
    "opencl:0",
    "AMD Radeon RX 7900 XTX (radeonsi, navi31, LLVM 19.1.7, DRM 3.61, 6.12.10-amd64) (rusticl, 25)",
    24 << 30,
    self_test="passed",
    notes=("NaN is wrong: it is replaced",),
    name="AMD Radeon RX 7900 XTX",
    platform="rusticl",
    driver="25.0.1",
    version="OpenCL 3.0",
    largest_allocation_bytes=4 << 30,
    local_memory_bytes=64 << 10,
    compute_units=96,
    has_float16=True,
    has_float64=False,
    shares_memory=False,
)
BROKEN = Device("opencl:1", "Old", None, "the driver has no compiler", "Install mesa-opencl-icd.")
LONG = Device("opencl", "", None, "absent " * 40, "Install one of these drivers. " * 9)


def test_each_device_has_a_row_and_a_long_description_continues_below_it():
    header, rule, cpu, radeon, rest = devices_text([CPU, RADEON]).splitlines()
    assert header.split() == ["engine", "device", "memory", "state"]
    assert set(rule) == {"-", " "}
    assert cpu.split("  ", 1) == ["cpu (default)", cpu[15:]]
    assert cpu[15:].split() == ["Ryzen", "9", "64", "GiB", "ready"]
    assert radeon.startswith("opencl:0       AMD Radeon RX 7900 XTX (radeonsi, navi31, LLVM 19.1.7")
    assert radeon.endswith("24 GiB  ready")
    assert rest.startswith(" " * 15)
    shown = f"{radeon[15:].removesuffix('24 GiB  ready')} {rest}".split()
    assert shown == RADEON.description.split()


def test_the_reason_and_the_remedy_are_below_the_table():
    text = devices_text([CPU, BROKEN, RADEON])
    assert "opencl:1       Old" in text
    assert "unknown  unusable" in text
    assert text.endswith(
        "\n\nopencl:1 cannot be used\n"
        "  problem  the driver has no compiler\n"
        "  remedy   Install mesa-opencl-icd."
    )


@pytest.mark.parametrize("make", [devices_text, details_text])
def test_lines_have_at_most_100_columns(make):
    assert callable(make)
    text = str(make([CPU, RADEON, LONG, BROKEN]))
    assert max(map(len, text.splitlines())) <= 100
    assert text.count("absent") == 40


def test_details_are_all_known_properties():
    assert details_text([CPU, RADEON]).splitlines() == [
        "cpu (default)",
        "  device         Ryzen 9",
        "  memory         64 GiB",
        "  compute units  32",
        "  float64        yes",
        "  TF32           no",
        "  state          ready",
        "",
        "opencl:0",
        "  platform            rusticl",
        "  device              AMD Radeon RX 7900 XTX",
        "  driver              25.0.1",
        "  version             OpenCL 3.0",
        "  memory              24 GiB, its own",
        "  largest allocation  4 GiB",
        "  local memory        64 KiB",
        "  compute units       96",
        "  float16             yes",
        "  float64             no",
        "  self-test           passed",
        "  avoided fault       NaN is wrong: it is replaced",
        "  state               ready",
    ]


def test_details_of_a_broken_device_have_the_reason_and_the_remedy():
    assert details_text([BROKEN]).splitlines()[-3:] == [
        "  state    unusable",
        "  problem  the driver has no compiler",
        "  remedy   Install mesa-opencl-icd.",
    ]
