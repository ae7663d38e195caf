"""The sweep of knob settings, as far as it goes without GPUs: its arguments, builds and keeper."""

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import sweep, sweep_process
from benchmarks.gpu.sweep_process import GEMM_ALONE, Measured
from pk_runtime.candidate import declared_knobs

KERNEL = """
constexpr int stages = knob("stages", 4, {2, 3, 4});
constexpr int super_m = knob("super_m", 8, {1, 8});
"""


def test_every_combination_of_the_values_asked_for() -> None:
    assert sweep.parse_knobs("", KERNEL) == [{}]
    assert sweep.parse_knobs("stages=3,4; super_m=*", KERNEL) == [
        {"stages": stages, "super_m": super_m} for stages in (3, 4) for super_m in (1, 8)
    ]
    with pytest.raises(ValueError, match="no knob 'stagse'; it has: stages, super_m"):
        sweep.parse_knobs("stagse=3", KERNEL)
    with pytest.raises(ValueError, match="is not NAME=NUMBER"):
        sweep.parse_knobs("stages=three", KERNEL)


def test_dims_are_read_or_refused() -> None:
    assert sweep.parse_dims("M=64, N=128") == {"M": 64, "N": 128}
    for wrong in ("M", "M=", "M=-1", "M=0", "=3"):
        with pytest.raises(ValueError, match="is not NAME=NUMBER"):
            sweep.parse_dims(wrong)


def test_a_kernel_is_found_by_name_or_file(tmp_path: Path) -> None:
    candidate, slug = sweep.find_kernel("gemm_reducescatter", None)
    assert slug == "gemm_reducescatter"
    mine = tmp_path / "mine.cu"
    mine.write_text(candidate.source)
    assert sweep.find_kernel(str(mine), None) == (candidate, slug)
    mine.write_text(KERNEL)
    assert sweep.find_kernel(str(mine), "alltoall")[1] == "alltoall"
    with pytest.raises(ValueError, match="say which problem"):
        sweep.find_kernel(str(mine), None)
    with pytest.raises(ValueError, match=r"shipped: .*gemm_reducescatter"):
        sweep.find_kernel("nothing", None)


@pytest.mark.slow
def test_what_does_not_build_is_listed_and_the_rest_is_built(tmp_path: Path) -> None:
    candidate, _ = sweep.find_kernel("alltoall", None)
    knob = declared_knobs(candidate.source)[0]
    wanted = [{knob.name: knob.default}, {knob.name: 12345}]
    built, failed = sweep.build_all(candidate, wanted, tmp_path, jobs=2)
    assert [(name, path.is_file()) for name, path in built] == [(sweep.label(wanted[0]), True)]
    assert [f.knobs for f in failed] == [sweep.label(wanted[1])]
    assert "12345 is not a legal value" in failed[0].why


def test_the_table_is_sorted_by_the_median() -> None:
    slow = Measured("slow", 132, "ok", [30.0, 10.0, 31.0])
    fast = Measured("fast", 120, "WRONG r1", [20.0, 21.0, 90.0])
    gemm = Measured(GEMM_ALONE, 0, "ok", [5.0])
    lines = sweep.table([slow, fast, gemm], flops=21e6, nvlink_bytes=2100).splitlines()
    assert [line.split("  ")[-1] for line in lines[1:]] == [GEMM_ALONE, "fast", "slow"]
    assert lines[2].split()[:5] == ["21.00", "20.00", "90.00", "1.0", "0.1"]
    assert "WRONG r1" in lines[2]


def _listen(*messages: tuple[Any, ...]) -> tuple[sweep_process._Keeper, str | None]:
    keeper = sweep_process._Keeper(["a", "b"])
    ours, theirs = multiprocessing.Pipe()
    for message in messages:
        theirs.send(message)
    theirs.close()
    return keeper, keeper.listen(ours)


def test_a_lost_process_costs_only_the_combination_that_ran() -> None:
    keeper, lost = _listen(
        ("world", 4),
        ("begin", "a"),
        ("checked", "a", 132, "ok"),
        ("time", "a", 10.0),
        ("begin", "b"),
    )
    assert lost == "the process ended without a word"
    measured, failed, world = keeper.result()
    assert [(m.knobs, m.times_us) for m in measured] == [("a", [10.0])]
    assert failed == [("b", lost)]
    assert world == 4


def test_a_result_that_went_wrong_later_stays_wrong() -> None:
    keeper, lost = _listen(
        ("checked", "a", 132, "ok"),
        ("time", "a", 1.0),
        ("checked", "a", 132, "WRONG r2"),
        ("checked", "a", 132, "ok"),
        ("refused", "b", "LaunchError: c must be [M/W, N]"),
        ("done",),
    )
    assert lost is None
    measured, failed, _ = keeper.result()
    assert measured[0].result == "WRONG r2"
    assert failed == [("b", "LaunchError: c must be [M/W, N]")]


def test_turns_end_when_the_time_is_up_or_nothing_moves() -> None:
    class Steady:
        def time_us(self, entry: Measured) -> float:
            return 5.0

    ours, theirs = multiprocessing.Pipe()
    entries = [Measured("a", 1, "ok"), Measured("b", 1, "ok")]
    late = list(sweep_process._turns(Steady(), entries, time.monotonic() - 1, theirs))
    assert len(late) == sweep_process.MIN_TURNS * 2
    calm = list(sweep_process._turns(Steady(), entries, time.monotonic() + 60, theirs))
    assert len(calm) == (sweep_process.STEADY_TURNS + 1) * 2
    assert ours.recv() == ("begin", "a")


def test_a_size_must_have_the_letters_of_the_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["--kernel", "alltoall", "--dims", "M=64"]) == 2
    assert "alltoall has the dims M, N; given: M" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without GPUs")
def test_without_gpus_the_sweep_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    arguments = ["--kernel", "alltoall", "--dims", "M=64,N=64", "--cache", str(tmp_path)]
    assert sweep.main([*arguments, "--json", str(report)]) == 1
    assert "ranks need as many GPUs, and there are 0" in capsys.readouterr().out
    (record,) = json.loads(report.read_text())
    assert record["times"] == []
    assert [name for name, _ in record["failed"]] == ["defaults"]
