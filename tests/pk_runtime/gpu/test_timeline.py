"""Timelines recorded by kernels on GPUs: the form of the records, what is built. Nothing runs."""

import ctypes as c
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pk_runtime.compiler import INCLUDE, TRACE_FLAGS, Compiler
from pk_runtime.execution import Command, Limits, LocalExecutor
from pk_runtime.gpu import timeline as module
from pk_runtime.gpu.timeline import MOST_RECORDS, TimelineError, read, timeline
from pk_runtime.kernels import shipped_kernel
from pk_runtime.toolchain import gxx, nvcc, search_path
from pk_runtime.trace import chrome

BEGINS, ENDS, WAITS, WAITED, SIGNALS = range(5)
DATA, SIGNAL = 2, 3  # of failure_kind


def recorded(*records: tuple[int, int, int], slot: int = 0, role: int = 1, seen: int = 0) -> bytes:
    """A buffer with the records of one role of block 7."""
    buffer = np.zeros(1, module._BUFFER)
    buffer["block"][0, slot] = 7
    buffer["seen"][0, slot, role] = seen or len(records)
    for i, record in enumerate(records):
        buffer["records"][0, slot, role, i] = record
    return buffer.tobytes()


def test_work_and_waits_come_out_in_turn() -> None:
    raw = recorded(
        (5000, BEGINS, 0), (6000, WAITS, DATA), (6500, WAITED, DATA), (7000, SIGNALS, 2),
        (9000, ENDS, 0),
    )  # fmt: skip
    trace = timeline({3: raw})
    found = [(s.name, s.start_us, s.duration_us) for s in trace.slices]
    assert found == [
        ("work", 0.0, 1.0), ("wait: ring data", 1.0, 0.5), ("work", 1.5, 0.5),
        ("signal", 2.0, 0.0), ("work", 2.0, 2.0),
    ]  # fmt: skip
    assert {(s.rank, s.block, s.role) for s in trace.slices} == {(3, 7, "consumer")}


def test_every_rank_begins_at_zero_and_lies_beside_the_others() -> None:
    one = recorded((100, BEGINS, 0), (1100, ENDS, 0))
    other = recorded((10**15, BEGINS, 0), (10**15 + 2000, ENDS, 0), role=3)
    trace = timeline({0: one, 1: other})
    assert [(s.rank, s.start_us, s.duration_us) for s in trace.slices] == [(0, 0, 1), (1, 0, 2)]
    events = chrome({"measured": trace})["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == ["work", "work"]


def test_what_did_not_fit_is_counted() -> None:
    times = itertools.chain(
        [(1000, BEGINS, 0)], ((2000 + i, SIGNALS, 0) for i in itertools.count())
    )
    raw = recorded(*itertools.islice(times, MOST_RECORDS), seen=MOST_RECORDS + 5)
    trace = timeline({0: raw})
    assert trace.left_out == 5
    assert trace.complete_until_us == pytest.approx((2000 + MOST_RECORDS - 2 - 1000) / 1e3)


def test_other_bytes_are_no_timeline() -> None:
    with pytest.raises(TimelineError, match="rank 2: 3 bytes"):
        timeline({2: b"abc"})
    assert timeline({0: recorded()}).slices == ()


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
def test_only_a_kernel_built_for_it_records(compiler: Compiler) -> None:
    kernel = shipped_kernel("allgather_ll")
    plain, traced = compiler.library(kernel), compiler.library(kernel, trace=True)
    assert plain != traced
    with pytest.raises(TimelineError, match="trace=True"):
        read(plain)
    copy = c.CDLL(str(traced)).pk_trace
    invalid = 1  # cudaErrorInvalidValue: both sides must mean the same buffer
    assert copy(None, c.c_size_t(module._BUFFER.itemsize - 1)) == invalid
    raw = c.create_string_buffer(module._BUFFER.itemsize)
    assert copy(raw, c.c_size_t(module._BUFFER.itemsize)) != invalid


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
def test_without_the_macro_the_kernel_is_the_one_without_the_marks(tmp_path: Path) -> None:
    bare = tmp_path / "include"
    shutil.copytree(INCLUDE, bare)
    marks = 0
    for header in (bare / "pk" / "sm90").glob("*.h"):
        text = header.read_text(encoding="utf-8")
        if header.name != "trace.h":
            text, removed = re.subn(r"(?m)^ *PK_MARK\(.*\);\n", "", text)
            marks += removed
            text = re.sub(r"(?s)#ifdef PK_TRACE\n.*?#(?:else\n(.*?)#)?endif\n", r"\1", text)
        header.write_text(text, encoding="utf-8")
    assert marks >= 7
    kernel = shipped_kernel("allgather_ll")
    with_marks = _ptx(tmp_path / "a", INCLUDE, kernel.source)
    assert with_marks == _ptx(tmp_path / "b", bare, kernel.source)
    assert with_marks != _ptx(tmp_path / "c", INCLUDE, kernel.source, *TRACE_FLAGS)


def _ptx(folder: Path, include: Path, source: str, *flags: str) -> bytes:
    folder.mkdir()
    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    tool, host = nvcc(), gxx()
    command = Command(
        argv=(
            *(str(tool.path), "-std=c++20", "-O3", "-arch=compute_90a", "-ptx", *flags),
            *(f"-I{include}", '-DPK_KNOBS=""', "-ccbin", str(host.path)),
            *("kernel.cu", "-o", "kernel.ptx"),
        ),
        workdir=folder,
        read_only=(include,),
        env={"PATH": search_path(tool, host), "TMPDIR": "."},
        limits=Limits(120.0, 4 << 30),
    )
    done = LocalExecutor().run(command)
    assert done.ok, done.stderr.decode()
    return (folder / "kernel.ptx").read_bytes()
