"""`python3 -m benchmarks.gpu`, as far as it goes without GPUs: rows, supervision, tables."""

import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as bench
from benchmarks.gpu import gemm_alone, peers, table
from benchmarks.gpu.case import set_count
from benchmarks.gpu.contenders import contender_of
from benchmarks.gpu.dispatch_rows import counted_bytes, rows_of, table_of
from benchmarks.gpu.points import Point, matrix, points
from benchmarks.gpu.sweep_process import GEMM_ALONE, Measured
from pk_runtime.candidate import Candidate, validate
from pk_runtime.gpu.dispatch_table import Row, write_dispatch
from pk_runtime.kernels import shipped_kernel
from problems.registry import get

MIB = 1 << 20


@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_row_is_a_size_of_a_problem_and_its_kernels_exist(world: int) -> None:
    rows = points(world)
    keys = [row.key for row in rows]
    assert len(set(keys)) == len(keys)
    for row in rows:
        problem = get(row.problem)
        assert set(row.dims) == set(problem.shapes[0].dims), row.key
        assert problem.divides(row.dims, world), row.key
        assert problem.input_specs(row.dims, world)
        for kernel, knobs in row.kernels:
            validate(Candidate("pk", shipped_kernel(kernel).files, knobs))
        for name in row.peers:
            assert callable(contender_of(name))
        assert row.goal_us is None or world == 4, "goals are for four GPUs"
    assert {row.section for row in rows if row.quick} == {"fused", "collectives", "heads"}


def test_sizes_are_the_bytes_they_say() -> None:
    sizes = {row.key: row for row in points(4)}
    for key, total in (
        ("allreduce/8KiB", 8 << 10),
        ("allgather/16MiB", 16 * MIB),
        ("reducescatter/256MiB", 256 * MIB),
        ("alltoall/16MiB", 4 * MIB),
    ):
        dims = sizes[key].dims
        assert 2 * dims["M"] * dims["N"] == total, key
    out = sizes["ulysses_gather_seq_scatter_heads/25.2MBout"]
    assert get(out.problem).nvlink_bytes(out.dims, 4) == pytest.approx(25.2e6, rel=0.01)
    with pytest.raises(ValueError, match="do not make rows of 128"):
        matrix(100)


def test_large_inputs_rotate_and_small_ones_do_not() -> None:
    assert set_count(64 << 10, 50 * MIB) == 1
    assert set_count(16 * MIB, 50 * MIB) == 10
    assert set_count(4 * MIB, 50 * MIB) == 38
    assert set_count(1 << 30, 50 * MIB) == 1
    assert set_count(4 * MIB, 500 * MIB) == 40


# --- the keeper of the ranks


def a_run(keys: list[str]) -> bench.Run:
    rows = [Point("s", "op", key, "allreduce", {"M": 1, "N": 128}, ()) for key in keys]
    return bench.Run(2, rows, {}, rounds=3, seconds=100.0)


def row_message(key: str) -> tuple[Any, ...]:
    record = {"contenders": [], "failed": [], "nvlink_bytes": 1.0, "sets": 1, "flops": 0}
    return ("row", key, record, 0.5)


def test_a_loss_is_blamed_on_what_ran_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = a_run(["a", "b"])
    seen: list[tuple[list[str], dict[tuple[str, str], str]]] = []

    def start(rows: tuple[Point, ...]) -> str | None:
        seen.append(([row.size for row in rows], dict(run.skip)))
        run._running = None
        if not run.results:
            run._take(row_message("allreduce/a"))
        if not run.skip:
            run._take(("begin", "allreduce/b", "hanging kernel"))
            return "rank 1: not done within 30 s"
        run._take(row_message("allreduce/b"))
        return None

    monkeypatch.setattr(run, "_start", start)
    run.finish()
    assert list(run.results) == ["allreduce/a", "allreduce/b"]
    blamed = {("allreduce/b", "hanging kernel"): "rank 1: not done within 30 s"}
    assert seen == [(["a", "b"], {}), (["b"], blamed)]


def test_a_loss_that_is_nobodys_fault_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(["a", "b"])
    monkeypatch.setattr(run, "_start", lambda rows: "NCCL found no interface")
    run.finish()
    assert run.starts == ["NCCL found no interface"]
    assert run.late == dict.fromkeys(("allreduce/a", "allreduce/b"), "NCCL found no interface")


def test_listening_ends_with_the_last_rank_or_the_first_loss() -> None:
    def pipes(*messages: list[tuple[Any, ...]]) -> list[Any]:
        ends = []
        for sent in messages:
            ours, theirs = multiprocessing.Pipe()
            for message in sent:
                theirs.send(message)
            theirs.close()
            ends.append(ours)
        return ends

    run = a_run(["a"])
    both = pipes([("world", 2), row_message("allreduce/a"), ("done",)], [("done",)])
    assert run._listen(both) is None
    assert list(run.results) == ["allreduce/a"]
    assert run._listen(pipes([("lost", "rank 0: why")], [])) in (
        "rank 0: why",
        "rank 1 ended without a word",
    )


# --- tables


def contender(name: str, us: float, **more: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "mode": "graph",
        "us": us,
        "right": True,
        "error": 0.002,
        "sms": None,
        "kernel": None,
        "knobs": None,
        "staged": False,
    }
    return made | more


def results() -> dict[str, Any]:
    """A made-up run: one row won, one lost, one with failures."""

    def row(op: str, problem: str, dims: dict[str, int], contenders: list[Any]) -> dict[str, Any]:
        return {
            "key": f"{problem}/{dims}",
            "section": "fused" if problem.startswith("gemm") else "collectives",
            "op": op,
            "size": f"{dims['M']}",
            "problem": problem,
            "dims": dims,
            "goal_us": 90.0,
            "nvlink_bytes": 3.5e7 * dims["M"] / 8192,
            "contenders": contenders,
            "failed": [],
            "seconds": 1.0,
        }

    mine = {"kernel": "allreduce_two_shot", "knobs": {"pieces": 2}, "sms": 132}
    won = row(
        "all-reduce",
        "allreduce",
        {"M": 8192, "N": 1024},
        [
            contender("nccl eager", 260.0, mode="eager"),
            contender("nccl graph", 240.0),
            contender("torch_two_shot", 180.0),
            contender("torch_one_shot", 50.0, right=False, error=0.7),
            contender("allreduce_two_shot pieces=2", 120.0, **mine),
            contender("allreduce_two_shot pieces=2, staged", 150.0, staged=True, **mine),
        ],
    )
    lost = row(
        "all-reduce",
        "allreduce",
        {"M": 1024, "N": 1024},
        [
            contender("nccl graph", 20.0),
            contender("allreduce_two_shot pieces=2", 25.0, **mine),
            contender("allreduce_two_shot pieces=2, staged", 28.0, staged=True, **mine),
        ],
    )
    fused = row(
        "GEMM + all-reduce",
        "gemm_allreduce",
        {"M": 8192, "N": 8192, "K": 2048},
        [contender("nccl graph", 900.0), contender("cublas", 370.0)],
    )
    fused["failed"] = [("gemm_allreduce", "rank 2: LaunchError: no | such\nthing")]
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "protocol": "made up",
        "rounds": 3,
        "machine": {
            "world_size": 4,
            "gpus": ["Made Up"] * 4,
            "driver": "1",
            "cuda": "13",
            "torch": "2",
            "nccl": "3",
        },
        "clocks": {"during": [{"gpus": ["1980, 2, 3, 4", "1755, 2, 3, 4", "[N/A], 1"]}]},
        "limit": {"gb_per_s": 350.0, "source": "made up"},
        "rows": [fused, won, lost],
        "not_measured": {"alltoall/8KiB": "there was no time left"},
    }


def test_the_table_shows_wins_and_losses_alike() -> None:
    text = table.tables(results())
    lines = {line.split(" | ")[1]: line for line in text.splitlines() if line.startswith("| all")}
    won, lost = lines["8192"], lines["1024"]
    for cell in ("260.0", "180.0 torch_two_shot", "| 120.0 | 150.0 | 2.00 | 1.50 |", "83 %"):
        assert cell in won, cell
    assert "`allreduce_two_shot pieces=2`" in won
    assert "| **0.80** |" in lost
    assert "1755 to 1980 MHz" in text
    assert "- GEMM + all-reduce, 8192: gemm_allreduce: rank 2: LaunchError: no / such" in text
    assert "torch_one_shot gave a wrong result (error 0.7)" in text
    impossible = results()
    row = impossible["rows"][1]
    peer = {**row["contenders"][0], "name": "too_good", "us": row["nvlink_bytes"] / 451e3}
    row["contenders"].append(peer)
    assert table.best_peer(row) != peer
    assert "too_good took" in table.tables(impossible)
    assert "- alltoall/8KiB: there was no time left" in text
    assert "WRONG: torch_one_shot" in table.summary(results()["rows"][1])


def test_the_gemm_alone_is_a_row_beside_cublas() -> None:
    measured = [
        Measured(GEMM_ALONE, 0, "ok", [345.0, 346.0, 350.0]),
        Measured("stages=4 super_m=8", 132, "ok", [360.0, 361.0, 362.0]),
        Measured("stages=3 super_m=8", 132, "WRONG r0", [100.0]),
    ]
    record = results()
    record["rows"].append(gemm_alone.row_of((8192, 8192, 2048), measured, [("x", "no memory")]))
    text = table.tables(record)
    (line,) = [line for line in text.splitlines() if line.startswith("| GEMM | 8192 x 8192")]
    assert "346.0 cuBLAS" in line
    assert "| **0.96** |" in line
    assert "`gemm stages=4 super_m=8`" in line
    assert "gemm stages=3 super_m=8 gave a wrong result" in text
    assert "GEMM, 8192 x 8192 x 2048: x: no memory" in text


def test_columns_are_as_many_as_headings() -> None:
    for line in table.tables(results()).split("\n\n"):
        counts = {row.count("|") for row in line.splitlines() if row.startswith("|")}
        assert len(counts) <= 1


def test_only_the_marked_part_of_a_document_is_replaced(tmp_path: Path) -> None:
    made, document = tmp_path / "results.json", tmp_path / "doc.md"
    made.write_text(json.dumps(results()))
    document.write_text(f"before\n{table.BEGIN}\nformer run\n{table.END}\nafter\n")
    assert table.main([str(made), "--write", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "former run" not in text
    assert "torch_two_shot" in text
    document.write_text("no markers\n")
    assert table.main([str(made), "--write", str(document)]) == 2
    assert document.read_text() == "no markers\n"


def test_the_document_has_the_markers_once() -> None:
    text = (Path(__file__).parents[1] / "docs" / "benchmarks.md").read_text()
    assert table.replaced(text, "x").count("\nx\n") == 1


# --- the dispatch table


def test_a_kernel_holds_between_sizes_it_won_and_not_beside_ones_it_lost() -> None:
    won: tuple[str, dict[str, int]] = ("a", {})
    nccl: tuple[None, dict[str, int]] = (None, {})
    assert rows_of([(64, *won), (1024, "b", {"k": 1}), (4096, *nccl)]) == [
        Row(math.isqrt(64 * 1024), "a", {}),
        Row(1024, "b", {"k": 1}),
        Row(None, None, {}),
    ]
    rest = Row(None, None, {})
    assert rows_of([(64, *nccl), (1024, *won)]) == [Row(1023, None, {}), Row(4096, "a", {}), rest]
    assert rows_of([(64, *won), (1024, *won)]) == [Row(4096, "a", {}), rest]


def test_a_kernel_is_not_trusted_far_from_what_was_measured() -> None:
    points: list[tuple[int, str | None, dict[str, int]]] = [(64, "a", {}), (1024, "a", {})]
    rest = Row(None, None, {})
    assert rows_of(points, fused=True) == [Row(15, None, {}), Row(4096, "a", {}), rest]
    assert rows_of([(64, None, {})], fused=True) == [rest]


def test_the_dispatch_table_counts_copies_and_never_loses(tmp_path: Path) -> None:
    rows = table_of(results())
    small, large = 2 * 1024 * 1024, 2 * 8192 * 1024
    assert rows["all_reduce"] == [
        Row(large - 1, None, {}),
        Row(4 * large, "allreduce_two_shot", {"pieces": 2}),
        Row(None, None, {}),
    ]
    assert small < large
    assert rows["gemm_all_reduce"] == [Row(None, None, {})]
    write_dispatch(tmp_path / "made_up.dispatch.toml", rows, "made up")
    record = results()
    record["rows"][1]["contenders"][-1]["us"] = 239.0  # staged: within the noise of NCCL's 240
    assert table_of(record)["all_reduce"] == [Row(None, None, {})]


def test_bytes_are_counted_as_the_dispatcher_does() -> None:
    dims = {"M": 8, "N": 16, "K": 32}
    assert counted_bytes("allreduce", dims, 4) == 256
    assert counted_bytes("reducescatter", dims, 4) == 1024
    assert counted_bytes("alltoall", dims, 4) == 1024
    assert counted_bytes("sp_ag_gemm_m_sharded", dims, 4) == 2 * 8 * 32 // 4


# --- the command line


def test_the_limit_may_come_from_a_calibration(tmp_path: Path) -> None:
    assert bench.link_limit(None)[0] == 350.0
    path = tmp_path / "calibration.json"
    rows = [{"pattern": "all", "gb_per_s": 341.5}, {"pattern": "pair", "gb_per_s": 370.0}]
    path.write_text(json.dumps({"date": "today", "results": {"store": rows}}))
    assert bench.link_limit(path) == (341.5, "calibration.json, today")
    path.write_text(json.dumps({"date": "today", "results": {}}))
    with pytest.raises(ValueError, match="calibrate without --only"):
        bench.link_limit(path)


def test_rows_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list", "--rows", "allreduce/"]) == 0
    listed = capsys.readouterr().out.split()
    assert "allreduce/64KiB" in listed
    assert "alltoall/64KiB" not in listed
    assert bench.main(["--rows", "no such row"]) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without GPUs")
def test_without_gpus_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--quick"]) == 2
    assert "needs 2 GPUs or more; there are 0" in capsys.readouterr().err


def test_a_missing_kernel_is_a_note_and_not_the_end(tmp_path: Path) -> None:
    row = Point("s", "op", "64", "allreduce", {"M": 1, "N": 128}, (("no_such_kernel", {}),))
    (built,) = bench.build_all([row], tmp_path, jobs=1)[row.key]
    assert "no shipped kernel" in built.problem


def test_peers_that_are_not_graphed_are_known() -> None:
    assert set(peers.PEERS) >= peers.EAGER
