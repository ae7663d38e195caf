"""The modelled baseline against everything that was measured."""

import pytest

from pk_runtime.baseline import (
    BaselineWork,
    baseline_taxes,
    baseline_us,
    collective_us,
    gemm_us,
    source,
)
from pk_runtime.sheet import Sheet, SheetError, load_sheet

MIB = 1 << 20


@pytest.fixture(scope="module")
def sheet() -> Sheet:
    return load_sheet("h200x4")


@pytest.mark.parametrize("name", ["h200x2", "h200x4"])
def test_the_gemm_model_meets_every_measured_gemm(name: str) -> None:
    sheet = load_sheet(name)
    for m, n, k, measured in sheet.gemms.m_n_k_us:
        assert gemm_us(m, n, k, sheet) == pytest.approx(measured, rel=0.05), (m, n, k)


@pytest.mark.parametrize(
    ("work", "measured_us"),
    [
        (BaselineWork((8192, 8192, 2048), "reduce_scatter", 32 * MIB), 718),
        (BaselineWork((8192, 2048, 8192), "all_gather", 32 * MIB), 688),
        (BaselineWork((8192, 8192, 2048), "all_reduce", 128 * MIB), 981),
        (BaselineWork((4096, 4096, 1024), "reduce_scatter", 8 * MIB), 161.6),
        (BaselineWork((4096, 1024, 4096), "all_gather", 8 * MIB), 156.2),
        (BaselineWork((16384, 16384, 4096), "reduce_scatter", 128 * MIB), 4171),
        (BaselineWork((16384, 4096, 16384), "all_gather", 128 * MIB), 4175),
    ],
)
def test_the_sum_meets_what_was_measured_as_a_whole(
    sheet: Sheet, work: BaselineWork, measured_us: float
) -> None:
    assert baseline_us(work, sheet) == pytest.approx(measured_us, rel=0.05)


@pytest.mark.parametrize(
    ("work", "measured_us"),
    [
        (BaselineWork((2048, 2048, 1024), "reduce_scatter", 4 * MIB), 46.4),
        (BaselineWork((8192, 8192, 4096), "reduce_scatter", 64 * MIB), 1087.7),
        (BaselineWork((8192, 4096, 8192), "all_gather", 64 * MIB), 1054.6),
        (BaselineWork((8192, 8192, 4096), "all_reduce", 128 * MIB), 1221.5),
    ],
)
def test_so_does_the_sum_of_two_gpus(work: BaselineWork, measured_us: float) -> None:
    assert baseline_us(work, load_sheet("h200x2")) == pytest.approx(measured_us, rel=0.05)


@pytest.mark.parametrize(
    ("sent_mb", "measured_us"), [(6.3, 54.5), (25.2, 169), (100.7, 581), (402.7, 2191)]
)
def test_reordering_copies_meet_what_was_measured(
    sheet: Sheet, sent_mb: float, measured_us: float
) -> None:
    """The 4-D all-to-all with a copy before and one after; each rank keeps a quarter."""
    size = int(sent_mb * 1e6 * 4 / 3)
    work = BaselineWork(None, "all_to_all", size, copies=(size, size))
    assert baseline_us(work, sheet) == pytest.approx(measured_us, rel=0.1)


def test_collectives_are_exact_where_they_were_measured(sheet: Sheet) -> None:
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for size, us in sheet.collective(op).bytes_us:
            assert collective_us(op, int(size), sheet) == pytest.approx(us)


def test_collectives_beyond_the_table(sheet: Sheet) -> None:
    smallest = sheet.collective("all_reduce").bytes_us[0]
    assert collective_us("all_reduce", 16, sheet) == smallest[1]
    large = collective_us("all_reduce", 512 * MIB, sheet)
    assert large == pytest.approx(2 * collective_us("all_reduce", 256 * MIB, sheet))


def test_more_work_never_takes_less_time(sheet: Sheet) -> None:
    sizes = [2**e for e in range(3, 32)]
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        times = [collective_us(op, size, sheet) for size in sizes]
        assert times == sorted(times)
    gemms = [gemm_us(d, d, d, sheet) for d in (16, 64, 256, 1024, 2048, 4096, 8192, 16384)]
    assert gemms == sorted(gemms)


def test_a_gemm_is_never_faster_than_its_memory_or_the_peak(sheet: Sheet) -> None:
    for m, n, k in ((64, 7168, 4608), (16, 16, 65536), (8192, 8192, 64), (128, 256, 64)):
        time = gemm_us(m, n, k, sheet)
        assert time > 2 * (m * k + k * n + m * n) / (sheet.peaks.hbm_gb_per_s * 1e3)
        assert time > 2e-6 * m * n * k / sheet.peaks.bf16_tflops


def test_work_without_a_part_is_the_other_part(sheet: Sheet) -> None:
    gemm = BaselineWork((8192, 8192, 2048), None, 0)
    collective = BaselineWork(None, "all_reduce", 128 * MIB)
    both = BaselineWork((8192, 8192, 2048), "all_reduce", 128 * MIB)
    assert baseline_us(gemm, sheet) + baseline_us(collective, sheet) == baseline_us(both, sheet)


@pytest.mark.parametrize(
    "work",
    [
        BaselineWork(None, None, 0),
        BaselineWork((0, 8, 8), None, 0),
        BaselineWork(None, "all_reduce", 0),
        BaselineWork(None, "all_reduce", 8, copies=(0,)),
    ],
)
def test_no_work_is_refused(sheet: Sheet, work: BaselineWork) -> None:
    with pytest.raises(ValueError, match=r"nothing to do|needs a gemm"):
        baseline_us(work, sheet)


def test_an_unknown_collective_is_refused(sheet: Sheet) -> None:
    with pytest.raises(SheetError, match="no table for 'gossip'"):
        baseline_us(BaselineWork(None, "gossip", 1), sheet)


@pytest.mark.parametrize("name", ["b200x8", "h100x8"])
def test_what_is_modelled_from_published_figures_meets_published_times(name: str) -> None:
    """Above the sizes where the published runs are bound by eager launches."""
    sheet = load_sheet(name)
    met = 0
    for table in sheet.fused:
        if table.implementation != "cublas_nccl":
            continue
        for m, n, k, published in table.m_n_k_us:
            if m < 8192:
                continue
            shard = 2 * (m * n if table.op == "gemm_reduce_scatter" else m * k) // 8
            op = "reduce_scatter" if table.op == "gemm_reduce_scatter" else "all_gather"
            us = baseline_us(BaselineWork((m, n, k), op, shard), sheet)
            assert us == pytest.approx(published, rel=0.06), (table.op, m)
            met += 1
    assert met >= 2


def test_the_taxes_of_a_gemm_with_a_collective(sheet: Sheet) -> None:
    m, n, k = 8192, 8192, 2048
    work = BaselineWork((m, n, k), "reduce_scatter", 32 * MIB)
    least = 2.0 * (m * k + k * n) + 32 * MIB
    taxes = baseline_taxes(work, least, sheet)
    gemm, collective = gemm_us(m, n, k, sheet), collective_us("reduce_scatter", 32 * MIB, sheet)
    assert taxes.launch == sheet.gemm_model.launch_us + sheet.simulator.graph_launch_us
    assert taxes.bulk_synchronous == pytest.approx(
        min(gemm - sheet.gemm_model.launch_us, collective - sheet.simulator.graph_launch_us)
    )
    # The 128 MiB result is written by the GEMM and read by the collective.
    assert taxes.locality == pytest.approx(2 * 128 * MIB / sheet.simulator.hbm_bytes_per_us)


def test_what_fits_into_l2_is_not_read_again(sheet: Sheet) -> None:
    m, n, k = 1024, 1024, 512
    work = BaselineWork((m, n, k), "reduce_scatter", 2 * m * n // 4)
    least = 2.0 * (m * k + k * n) + 2 * m * n / 4
    taxes = baseline_taxes(work, least, sheet)
    assert taxes.locality == pytest.approx(2 * m * n / sheet.simulator.hbm_bytes_per_us)


def test_a_collective_alone_waits_for_its_ranks_and_its_copies_are_locality(sheet: Sheet) -> None:
    work = BaselineWork(None, "all_to_all", 16 * MIB, copies=(16 * MIB, 16 * MIB))
    taxes = baseline_taxes(work, 2 * 16 * MIB, sheet)
    assert taxes.launch == 3 * sheet.simulator.graph_launch_us
    assert taxes.bulk_synchronous == pytest.approx(9.8 - sheet.simulator.graph_launch_us)
    assert taxes.locality == pytest.approx(4 * 16 * MIB / sheet.simulator.hbm_bytes_per_us)


def test_the_source_of_a_baseline_says_if_nothing_was_measured(sheet: Sheet) -> None:
    assert "measured" in source(sheet)
    assert "uncalibrated" in source(load_sheet("h100x8"))
