"""The measuring tool, as far as it goes without GPUs: what it builds, prints and writes."""

import ctypes
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pk_runtime.baseline import collective_us
from pk_runtime.calibrate import cli, compute, latencies, nccl, node, tables, transfers
from pk_runtime.calibrate import probes as probe_module
from pk_runtime.calibrate.probes import (
    KINDS,
    PartlyMeasuredError,
    ProbeError,
    Probes,
    Transfer,
    build,
)
from pk_runtime.calibrate.sheet_writer import sheet_text
from pk_runtime.sheet import load_sheet, read_sheet


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("probes"))


@pytest.mark.slow
def test_every_function_that_is_called_is_in_the_library(library: Path) -> None:
    Probes(library)  # binds all of them and compares the size of the struct
    source = "".join(
        Path(module.__file__ or "").read_text()
        for module in (compute, latencies, node, probe_module, transfers)
    )
    called = set(re.findall(r"""(?:\bon|call)\(\s*(?:[\w.]+,\s*)?"(\w+)\"""", source))
    called |= set(re.findall(r"""\*\(device, "(\w+)\"""", source))
    assert {"spin", "barrier", "transfer", "copy"} <= called
    assert called <= set(probe_module._SIGNATURES)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without GPUs")
def test_a_failed_probe_says_which_and_why(library: Path) -> None:
    with pytest.raises(ProbeError, match=r"probe transfer: .*CUDA"):
        Probes(library).call("transfer", ctypes.byref(Transfer(device=0)), None)


def test_peers_are_staggered() -> None:
    assert [transfers.peers_of(d, 4, "all") for d in range(4)] == [
        [1, 2, 3],
        [2, 3, 0],
        [3, 0, 1],
        [0, 1, 2],
    ]
    assert [transfers.peers_of(d, 4, "ring") for d in range(4)] == [[1], [2], [3], [0]]
    assert transfers.peers_of(0, 2, "fan") == [1]


def test_points_stay_inside_the_memory_they_walk_through() -> None:
    for effort in (cli.quick(132), cli.full(132)):
        plan = effort.plan
        assert max(plan.sms) * max(*plan.chunks, transfers.COPY_STEP) <= node.WINDOW
        assert all(node.WINDOW % chunk == 0 for chunk in (*plan.chunks, transfers.COPY_STEP))
        assert probe_module.MAX_PEERS * node.WINDOW <= node.GIB
        assert max(*plan.copy_bytes, plan.staged_bytes) <= node.GIB
        assert {1, 2, 4, 8, 16, 32} >= set(plan.in_flight), "depths that probes.cu is built for"


def test_bus_bandwidth_counts_as_nccl_does() -> None:
    assert nccl.bus_bytes("all_reduce", 1024, 4) == 1536
    assert nccl.bus_bytes("all_gather", 1024, 4) == 3072
    assert nccl.bus_bytes("reduce_scatter", 1024, 4) == 3072
    assert nccl.bus_bytes("all_to_all", 1024, 4) == 768


def row(mechanism: str, pattern: str, chunk: int, in_flight: int, sms: int, rate: float) -> Any:
    return {
        "mechanism": mechanism,
        "pattern": pattern,
        "chunk_bytes": chunk,
        "in_flight": in_flight,
        "sms": sms,
        "us": 1000.0,
        "gb_per_s": rate,
    }


def test_collectives_are_measured_in_processes_of_their_own() -> None:
    rows = nccl.measure_nccl(2, (2048, 4096), rounds=1, limit_s=120.0, backend="gloo")
    measured = [(row["op"], row["bytes"], row["mode"]) for row in rows]
    assert measured == [(op, size, "eager") for op in nccl.OPS for size in (2048, 4096)]
    assert all(isinstance(row["us"], float) and row["us"] > 0 for row in rows)
    assert not multiprocessing.active_children()


def test_a_collective_that_fails_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "OPS", ("all_reduce", "all_to_all"))
    impossible = -2  # bytes
    with pytest.raises(PartlyMeasuredError) as caught:
        nccl.measure_nccl(2, (impossible, 2048), rounds=1, limit_s=120.0, backend="gloo")
    failures = str(caught.value)  # an error's own text may hold any character, ";" too
    assert failures.startswith("all_reduce of -2 bytes, eager: rank ")
    for op in ("all_reduce", "all_to_all"):
        assert re.search(rf"{op} of -2 bytes, eager: rank \d: \w+", failures)
    assert "negative" in failures, "what one rank says; another may only hear that it has gone"
    assert [(row["op"], row["bytes"]) for row in caught.value.rows] == [
        ("all_reduce", 2048),
        ("all_to_all", 2048),
    ]


def test_processes_that_do_not_meet_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "START_S", 0.0)
    with pytest.raises(PartlyMeasuredError, match="did not meet in 0 s; 4 points") as caught:
        nccl.measure_nccl(2, (2048,), rounds=1, limit_s=120.0, backend="gloo")
    assert not caught.value.rows
    assert not multiprocessing.active_children()


def test_the_section_ends_in_time() -> None:
    with pytest.raises(PartlyMeasuredError, match="time for this section is up; 4 points"):
        nccl.measure_nccl(2, (2048,), rounds=1, limit_s=0.0, backend="gloo")


def record() -> dict[str, Any]:
    """A made-up run on two GPUs, with numbers unlike those of any shipped sheet."""
    results: dict[str, list[dict[str, Any]]] = {
        "copy_engine": [
            {"pattern": "pair", "bytes": 2048, "us": 7.5, "gb_per_s": 0.3},
            {"pattern": "pair", "bytes": 1 << 30, "us": 2700.0, "gb_per_s": 397.0},
            *(
                {"pattern": pattern, "bytes": 1 << 26, "us": 1.0, "gb_per_s": rate}
                for pattern, rate in (
                    ("staged_push", 383.0),
                    ("staged_pull", 381.0),
                    ("all_at_once", 199.0),
                )
            ),
        ],
        "store": [row("store", "pair", 16, 4, sms, 44.0 * sms) for sms in (1, 8)],
        "tma_store": [row("tma_store", "all", 8192, depth, 132, 340.0 + depth) for depth in (4, 1)],
        "tma_reduce_add_bf16": [row("tma_reduce_add_bf16", "all", 8192, 4, 132, 311.0)],
        "flags": [
            {"what": "round trip, two GPUs, store.release", "us": 1.3},
            {"what": "round trip, two GPUs, red.release.add", "us": 1.5},
            {"what": "barrier of 2 GPUs in a kernel", "us": 1.25},
            {"what": "flag between two SMs of one GPU, one way", "us": 0.7},
        ],
        "memory": [
            {"what": "hbm copy, read + write", "bytes": 1, "us": 1.0, "gb_per_s": 4012.5},
            {"what": "load latency, hbm", "bytes": 1, "us": 0.72},
        ],
        "gemm": [
            {"m": 64, "n": 64, "k": 64, "gpus": who, "us": us, "tflops": 760.0}
            for who, us in (("one GPU", 5.0), ("all GPUs", 6.0))
        ],
        "nccl": [
            {"op": "all_reduce", "mode": mode, "bytes": size, "us": us, "bus_gb_per_s": 1.0}
            for mode, size, us in (
                ("graph", 65536, 11.0),
                ("graph", 8192, 9.0),
                ("eager", 8192, 30.0),
            )
        ],
    }
    machine = {
        "gpus": ["Made Up", "Made Up"],
        "world_size": 2,
        "sms": 100,
        "smem_bytes_per_sm": 200000,
        "l2_bytes": 30 << 20,
        "hbm_bytes": 10**11,
        "driver": '1.2 "odd"',
        "cuda": "13.0",
        "torch": "2.11",
        "nccl": "2.28.9",
        "max_clocks_mhz": [1500.0, None],
    }
    return {"date": "2026-01-02T03:04:05+00:00", "machine": machine, "results": results}


def test_a_sheet_has_what_was_measured_and_marks_the_rest(tmp_path: Path) -> None:
    base = load_sheet("h200x4")
    path = tmp_path / "mine.toml"
    path.write_text(sheet_text(record(), base, "mine"))
    sheet = read_sheet(path)
    assert (sheet.world_size, sheet.chip.sms, sheet.chip.clock_mhz) == (2, 100, 1500.0)
    simulator = sheet.simulator
    assert simulator.hbm_bytes_per_us == 4012.5e3
    assert simulator.sm_link_bytes_per_us == 44e3
    assert simulator.link_pair_bytes_per_us == 352e3
    assert simulator.link_out_bytes_per_us == 344e3
    assert simulator.link_reduce_bytes_per_us == 311e3
    assert simulator.flag_latency_us == pytest.approx(0.75 - base.simulator.release_us)
    assert simulator.copy_engine_latency_us == 7.5
    assert simulator.l2_latency_us == base.simulator.l2_latency_us
    assert simulator.enter_us == base.simulator.enter_us
    assert list(sheet.copy_engine.pair_bytes_us) == [(2048, 7.5), (1 << 30, 2700.0)]
    assert list(sheet.gemms.m_n_k_us) == [(64, 64, 64, 5.0)]
    assert collective_us("all_reduce", 8192, sheet) == pytest.approx(9.0)
    tables_of = {(t.mechanism, t.pattern, t.chunk_bytes): t for t in sheet.transfers}
    assert list(tables_of["tma_store", "all", 8192].sms_gb_per_s) == [(132, 344.0)]
    assert ("load", "all", 16) in tables_of, "kept from the base"
    text = path.read_text()
    assert "hbm_bytes_per_us = 4012500.0 # measured" in text
    assert f"l2_latency_us = {base.simulator.l2_latency_us} # from h200x4" in text
    plain = {"name", "title", "source", "world_size"}  # say it themselves
    for line in text.splitlines():
        key, equals, _ = line.partition(" = ")
        assert not equals or key in plain or re.search(r" # (measured|from h200x4)", line), line


def test_a_sheet_of_nothing_measured_is_its_base(tmp_path: Path) -> None:
    base = load_sheet("h200x4")
    empty = record() | {"results": {}}
    empty["machine"] |= {
        "world_size": base.world_size,
        "sms": base.chip.sms,
        "smem_bytes_per_sm": 0,
        "l2_bytes": 0,
        "hbm_bytes": 0,
        "max_clocks_mhz": [],
    }
    path = tmp_path / "same.toml"
    path.write_text(sheet_text(empty, base, "same"))
    sheet = read_sheet(path)
    for part in ("chip", "peaks", "simulator", "gemm_model", "gemms", "copy_engine", "fused"):
        assert getattr(sheet, part) == getattr(base, part), part
    assert sheet.collectives == base.collectives
    assert sheet.transfers == base.transfers


def test_tables_show_every_number() -> None:
    results = record()["results"]
    text = "\n".join(tables.render(name, rows) for name, rows in results.items())
    for shown in ("44.0", "352.0", "344.0", "199", "all GPUs, all peers in turn", "graph us"):
        assert shown in text
    assert tables.plain([{"a": 1.5, "b": "x"}, {"b": "long"}]).splitlines() == [
        "a       b",
        "1.5     x",
        "     long",
    ]


def test_every_section_has_a_title() -> None:
    assert set(tables.TITLES) == set(cli.NAMES)
    assert set(KINDS) == set(cli.MECHANISMS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without GPUs")
def test_without_gpus_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--quick"]) == 2
    assert "no GPU that torch can use" in capsys.readouterr().err


def test_wrong_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--base", "h300x8"]) == 2
    assert "no such sheet" in capsys.readouterr().err
    assert cli.main(["--json", str(tmp_path / "none" / "out.json")]) == 2
    assert "create it first" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--only", "everything"])
