"""Traces: what an untrusted process writes is checked; what comes out is what Perfetto reads."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pk_runtime.trace import Trace, TraceError, chrome, write_chrome

RECORDED: dict[str, Any] = {
    "left_out": 0,
    "complete_until_us": 0.0,
    "slices": [
        [0, 0, "loader", "wait: ring slot", 0.5, 1.0],
        [1, 0, "consumer", "multiply", 0.0, 2.0],
        [0, 0, "loader", "signal", 2.0, 0.25],
    ],
    "ports": [[0, "link out", 0.5, [[0.5, 1000], [0.5, 1000], [0.25, 500]]]],
}


def test_events_are_in_order_and_named() -> None:
    document = chrome({"predicted": Trace.from_engine(RECORDED)})
    events = document["traceEvents"]
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    names = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert names == {(0, "predicted: rank 0"), (1, "predicted: rank 1")}
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {"SM 0 loader", "SM 0 consumer"}
    (wait,) = [e for e in events if e["name"] == "wait: ring slot"]
    assert (wait["ph"], wait["ts"], wait["dur"], wait["cat"]) == ("X", 0.5, 1.0, "wait")


def test_a_counter_says_when_it_changes_and_when_it_ends() -> None:
    events = chrome({"p": Trace.from_engine(RECORDED)})["traceEvents"]
    busy = [(e["ts"], e["args"]["busy"]) for e in events if e["ph"] == "C"]
    assert busy == [(0.0, 1.0), (1.0, 0.5), (1.5, 0.0)]


def test_two_runs_lie_side_by_side() -> None:
    one = Trace.from_engine(RECORDED)
    events = chrome({"predicted": one, "measured": one})["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "predicted: rank 0", 1: "predicted: rank 1", 2: "measured: rank 0",
                     3: "measured: rank 1"}  # fmt: skip


def test_what_was_left_out_is_said() -> None:
    cut = Trace.from_engine(RECORDED | {"left_out": 7, "complete_until_us": 12.5})
    assert "7 more after 12.5 us" in chrome({"p": cut})["otherData"]["p"]


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_chrome(path, {"p": Trace.from_engine(RECORDED)})
    assert json.loads(path.read_text())["traceEvents"]
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="nowhere"):
        write_chrome(tmp_path / "nowhere" / "out.json", {})


def test_names_from_a_stranger_are_made_harmless() -> None:
    name = "\x1b[31m" + "x" * 500
    (found,) = Trace.from_engine(RECORDED | {"slices": [[0, 0, "loader", name, 0, 1]]}).slices
    assert "\x1b" not in found.name
    assert len(found.name) <= 60


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"slices": None}, "lists"),
        ({"ports": {}}, "lists"),
        ({"slices": [[0, 0, "loader", "x", 0]]}, r"slices\[0\]"),
        ({"slices": [[99, 0, "loader", "x", 0, 1]]}, r"slices\[0\]"),
        ({"slices": [[0, 0, "root", "x", 0, 1]]}, r"slices\[0\]"),
        ({"slices": [[0, 0, "loader", "x", -1, 1]]}, "negative"),
        ({"slices": [[0, 0, "loader", "x", math.nan, 1]]}, "finite"),
        ({"slices": [[0, 0, "loader", "x", "0", 1]]}, "not a number"),
        ({"ports": [[0, "usb", 1, []]]}, r"ports\[0\]"),
        ({"ports": [[0, "HBM", 0, []]]}, r"ports\[0\]"),
        ({"ports": [[0, "HBM", 1, [[1]]]]}, "interval"),
        ({"left_out": None}, "left_out"),
    ],
)
def test_a_malformed_trace_names_the_entry(change: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        Trace.from_engine(RECORDED | change)
    with pytest.raises(TraceError):
        Trace.from_engine([RECORDED])
