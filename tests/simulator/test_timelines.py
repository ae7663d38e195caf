"""Timelines of simulated runs: as Chrome trace events, bounded, and in step with the figures."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pk_runtime.compiler import Compiler
from pk_runtime.kernels import shipped
from pk_runtime.sheet import Sheet
from pk_runtime.simulator import Simulator, TensorSpec, TimingRun
from problems.registry import get

WORLD = 4


def timed(
    compiler: Compiler, simulator: Simulator, sheet: Sheet, slug: str, trace: Path | bool,
    number: int = 0, **dims: int,
) -> TimingRun:  # fmt: skip
    problem = get(slug)

    def specs(found: dict[str, Any]) -> list[TensorSpec]:
        return [TensorSpec(name, spec.shape, spec.dtype) for name, spec in found.items()]

    run = simulator.timing(
        compiler.simulator(shipped(slug)[number]),
        inputs=specs(dict(problem.input_specs(dims, WORLD))),
        outputs=specs(dict(problem.output_specs(dims, WORLD))),
        world_size=WORLD,
        sheet=sheet,
        trace=trace,
    )
    assert run.outcome == "finished", run.diagnosis
    return run


def test_a_trace_is_valid_and_agrees_with_the_figures(
    compiler: Compiler, simulator: Simulator, sheet: Sheet, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    run = timed(
        compiler, simulator, sheet, "gemm_reducescatter", path, M=2048, N=2048, K=2048
    )  # fmt: skip
    events = json.loads(path.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert {"ph", "name", "pid", "tid", "ts"} <= set(event)
        assert 0 <= event["pid"] < WORLD
    stamps = [event["ts"] for event in events if event["ph"] != "M"]
    assert stamps == sorted(stamps)
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    roles = {e["args"]["name"].split()[-1] for e in events if e["name"] == "thread_name"}
    assert {"loader", "consumer", "storer"} <= roles
    for track in tracks.values():
        for one, other in itertools.pairwise(track):
            assert one["dur"] >= 0
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-5
    last = max(event["ts"] + event.get("dur", 0) for event in events if event["ph"] == "X")
    assert last <= run.time_us
    assert {"multiply", "wait: ring data"} <= {event["name"] for event in events}


def test_links_and_memory_are_as_busy_as_the_figures_say(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    run = timed(
        compiler, simulator, sheet, "gemm_reducescatter", True, M=2048, N=2048, K=2048
    )  # fmt: skip
    assert run.timeline is not None
    assert len(run.timeline.meters) == 3 * WORLD
    figures = {"link out": "link_out", "link in": "link_in", "HBM": "hbm"}
    for meter in run.timeline.meters:
        rank, name = run.diagnosis["ranks"][meter.rank], figures[meter.port]
        busy = math.fsum(busy for busy, _ in meter.intervals)
        moved = math.fsum(size for _, size in meter.intervals)
        assert busy == pytest.approx(rank[f"{name}_busy_us"], rel=1e-3)
        assert moved == pytest.approx(rank[f"{name}_bytes"], rel=1e-3)
        assert all(busy <= meter.width_us * 1.001 for busy, _ in meter.intervals)


def test_recording_changes_no_time_and_is_off_unless_asked_for(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    with_trace, without = (
        timed(compiler, simulator, sheet, "allreduce", trace, 3, M=64, N=512)
        for trace in (True, False)
    )
    assert with_trace.time_us == without.time_us
    assert without.timeline is None
    assert with_trace.timeline is not None
    assert with_trace.timeline.left_out == 0
    blocks = {(s.rank, s.block) for s in with_trace.timeline.slices}
    assert len(blocks) <= 3 * WORLD


def test_the_critical_path_adds_up_for_every_way_of_moving_data(
    compiler: Compiler, simulator: Simulator, sheet: Sheet
) -> None:
    """Bulk stores, slabs from peers, mailboxes; the parts are the whole, to the last digit."""
    for number in range(len(shipped("allreduce"))):
        run = timed(compiler, simulator, sheet, "allreduce", False, number, M=512, N=1024)
        assert run.path is not None
        assert math.isclose(run.path.total, run.time_us, rel_tol=1e-8)
        assert run.path.link > 0
        assert run.path.synchronization < run.time_us / 2
        launch_us = sheet.simulator.graph_launch_us + sheet.simulator.enter_us
        assert run.path.exposed_communication == 0
        assert run.path.launch == pytest.approx(launch_us)
