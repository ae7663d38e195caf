"""Hardware sheets: the shipped one, and a strict reader that names file, key and fix."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pk_runtime import sheet as module
from pk_runtime.sheet import Sheet, SheetError, load_sheet, read_sheet, sheet_names

SHIPPED = Path(module.__file__).parent / "sheets" / "h200x4.toml"


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes the shipped sheet with one text replaced."""

    def write(old: str, new: str) -> Path:
        text = SHIPPED.read_text()
        assert old in text
        path = tmp_path / "h200x4.toml"
        path.write_text(text.replace(old, new, 1))
        return path

    return write


def test_the_shipped_sheets_load() -> None:
    assert sheet_names() == ("b200x8", "h100x8", "h200x2", "h200x4")
    for name, world in (("h200x2", 2), ("h200x4", 4)):
        sheet = load_sheet(name)
        assert (sheet.name, sheet.world_size, sheet.multicast) == (name, world, False)
        assert f"measured on {world}x H200" in sheet.source
    sheet = load_sheet("h200x4")
    assert hash(sheet) == hash(read_sheet(SHIPPED))


def test_the_peaks_are_the_nominal_ones() -> None:
    peaks = load_sheet("h200x4").peaks
    assert (peaks.bf16_tflops, peaks.tf32_tflops, peaks.fp32_tflops) == (989, 494, 67)
    assert (peaks.fp64_tflops, peaks.nvlink_gb_per_s, peaks.hbm_gb_per_s) == (34, 450, 4800)


def test_the_simulator_gets_plain_positive_numbers() -> None:
    for name in sheet_names():
        values = load_sheet(name).simulator_parameters().values()
        assert all(type(v) is float and math.isfinite(v) and v > 0 for v in values)
    parameters = load_sheet("h200x4").simulator_parameters()
    assert parameters["sms"] == 132
    assert parameters["smem_bytes_per_sm"] == 232448
    assert parameters["link_out_bytes_per_us"] == 352e3
    assert parameters["link_reduce_bytes_per_us"] < parameters["link_out_bytes_per_us"]
    assert parameters["barrier_us"] == 1.475


@pytest.mark.parametrize("name", sheet_names())
def test_every_collective_of_the_baseline_is_there(name: str) -> None:
    sheet = load_sheet(name)
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert sheet.collective(op).mode == "graph"
    with pytest.raises(SheetError, match="all_gather, all_reduce, all_to_all, reduce_scatter"):
        sheet.collective("broadcast")


@pytest.mark.parametrize("name", sheet_names())
def test_measured_rates_stay_below_the_nominal_ones(name: str) -> None:
    sheet = load_sheet(name)
    rates = [rate for table in sheet.transfers for _, rate in table.sms_gb_per_s]
    assert max(rates) < sheet.peaks.nvlink_gb_per_s
    assert sheet.simulator.tensor_flops_per_us < sheet.peaks.bf16_tflops * 1e6
    assert sheet.simulator.hbm_bytes_per_us < sheet.peaks.hbm_gb_per_s * 1e3


UNCALIBRATED = tuple(name for name in sheet_names() if not load_sheet(name).calibrated)


def test_machines_that_were_not_measured_say_so() -> None:
    assert UNCALIBRATED == ("b200x8", "h100x8")
    for name in UNCALIBRATED:
        sheet = load_sheet(name)
        assert (sheet.world_size, sheet.multicast) == (8, False)
        assert "not calibrated" in sheet.source
        assert "uncalibrated" in sheet.title


@pytest.mark.parametrize("name", UNCALIBRATED)
def test_every_published_value_says_where_it_is_from(name: str) -> None:
    origin = re.compile(r"# (nominal|paper|chart|published|h200x4|estimate|by definition)\b")
    plain = {"name", "title", "source", "architecture", "world_size", "multicast", "calibrated"}
    plain |= {"op", "library", "implementation", "mode", "mechanism", "pattern", "m", "n"}
    text = (SHIPPED.parent / f"{name}.toml").read_text()
    lines = [line for line in text.splitlines() if " = " in line and line[0] not in "#["]
    assert len(lines) > 70
    for line in lines:
        assert line.split(" = ")[0] in plain or origin.search(line), line


def test_every_value_of_two_gpus_says_where_it_is_from() -> None:
    text = (SHIPPED.parent / "h200x2.toml").read_text()
    origin = re.compile(r" # (measured \d{4}-\d\d-\d\d|from h200x4|fit: |fit to |never used)")
    plain = {
        "name",
        "title",
        "source",
        "world_size",
        "calibrated",
        "op",
        "library",
        "implementation",
        "mode",
    }
    plain |= {"mechanism", "pattern", "chunk_bytes", "m", "n"}
    lines = [line for line in text.splitlines() if " = " in line and line[0] not in "#["]
    assert len(lines) > 200
    for line in lines:
        assert line.split(" = ")[0] in plain or origin.search(line), line


def test_an_unknown_sheet_lists_the_known_ones() -> None:
    with pytest.raises(SheetError, match="Known sheets: b200x8, h100x8, h200x2"):
        load_sheet("h100x4")
    with pytest.raises(SheetError, match="no such sheet"):
        load_sheet("../h200x4")


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("sms = 132", "sms = 132\ncores = 7", "chip.cores", "unknown key"),
        ("clock_mhz = 1980", "", "chip.clock_mhz", "missing key"),
        ("sms = 132", "sms = 0", "chip.sms", "greater than zero"),
        ("sms = 132", "sms = -132", "chip.sms", "greater than zero"),
        ("sms = 132", "sms = 132.5", "chip.sms", "type int"),
        ("sms = 132", "sms = true", "chip.sms", "type int"),
        ("sms = 132", 'sms = "132"', "chip.sms", "type int"),
        ("clock_mhz = 1980", "clock_mhz = nan", "chip.clock_mhz", "finite"),
        ("clock_mhz = 1980", "clock_mhz = inf", "chip.clock_mhz", "finite"),
        ("multicast = false", "multicast = 0", "multicast", "type bool"),
        ('title = "4x NVIDIA H200, NVLink 4, unicast only"', 'title = ""', "title", "empty"),
        ("[chip]", "[chips]", "chips", "unknown key"),
        ("[chip]", "[[chip]]", "chip", "not a table"),
        ('mode = "eager"', 'mode = "lazy"', "collectives[0].mode", "eager, graph"),
        ("[[8192, 34.5], [65536, 22.7]", "[[65536, 22.7], [8192, 34.5]", "bytes_us", "increase"),
        ("[[8192, 34.5]", "[[8192, 34.5, 1.0]", "collectives[0].bytes_us[0]", "2 items"),
        ("[2048, 2048, 512, 9.9]", "[2048, 2048, 512]", "gemms.m_n_k_us[0]", "4 items"),
        ("[2048, 2048, 512, 9.9]", "[2048, 2048, -5, 9.9]", "m_n_k_us[0][2]", "zero"),
        ('name = "h200x4"', 'name = "other"', "name", "like its file"),
        ('name = "h200x4"', "name = ", "file", "valid TOML"),
    ],
)
def test_a_wrong_sheet_names_file_key_and_fix(
    changed: Callable[[str, str], Path], old: str, new: str, key: str, says: str
) -> None:
    with pytest.raises(SheetError) as caught:
        read_sheet(changed(old, new))
    assert caught.value.file == "h200x4.toml"
    assert key in caught.value.key
    assert says in str(caught.value)
    assert caught.value.fix


def test_a_missing_file_is_a_sheet_error(tmp_path: Path) -> None:
    with pytest.raises(SheetError, match="cannot be read"):
        read_sheet(tmp_path / "absent.toml")


def test_the_sheet_has_no_field_that_the_file_lacks() -> None:
    keys = SHIPPED.read_text()
    assert all(name in keys for name in Sheet.__dataclass_fields__)
