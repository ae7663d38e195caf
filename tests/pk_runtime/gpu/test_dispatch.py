"""The choice between kernels and torch.distributed, and what happens where no kernel is chosen."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from pk_runtime.gpu.dispatch import INTERFACES, Dispatcher, Row, Table, read_dispatch
from pk_runtime.gpu.dispatch_table import (
    NOT_MEASURED,
    OPERATIONS,
    TableError,
    dispatch_path,
    load_dispatch,
    write_dispatch,
)
from pk_runtime.sheet import load_sheet, sheet_names

ROWS = {
    "all_reduce": [
        Row(65536, "allreduce_ll", {"pieces": 2}),
        Row(1 << 24, "allreduce_two_shot"),
        Row(),
    ],
    "all_to_all": [Row()],
}


def write(folder: Path, text: str) -> Path:
    path = folder / "x.dispatch.toml"
    path.write_text(text)
    return path


def test_every_sheet_has_a_table_that_ends_every_operation() -> None:
    assert sheet_names()
    assert not any("dispatch" in name for name in sheet_names())
    for name in filter(lambda name: load_sheet(name).calibrated, sheet_names()):
        table = read_dispatch(dispatch_path(name))
        assert set(table.rows) == set(OPERATIONS)
        assert load_dispatch(name) == table
    assert load_dispatch("no-such-sheet") == Table(NOT_MEASURED, {})
    assert set(INTERFACES) == set(OPERATIONS)


def test_a_size_finds_its_row(tmp_path: Path) -> None:
    path = tmp_path / "t.dispatch.toml"
    write_dispatch(path, ROWS, '2026-11-21, "4x H200"')
    table = read_dispatch(path)
    assert table.measured == '2026-11-21, "4x H200"'
    assert table.rows["all_reduce"] == tuple(ROWS["all_reduce"])
    assert table.row("all_reduce", 65536).kernel == "allreduce_ll"
    assert table.row("all_reduce", 65537) == Row(1 << 24, "allreduce_two_shot")
    assert table.row("all_reduce", (1 << 24) + 1).nccl
    assert table.row("all_to_all", 1).nccl
    assert table.row("all_gather", 1).nccl, "an operation without rows"
    with pytest.raises(KeyError, match="no operation 'sum'"):
        table.row("sum", 1)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[sum]]\nnccl = true", "sum: no such operation"),
        ("all_reduce = 3", "must be a list of rows"),
        ("[[all_reduce]]\nmax_bytes = 5\nnccl = true", "the last has none"),
        (
            "[[all_reduce]]\nmax_bytes = 5\nnccl = true\n[[all_reduce]]\nmax_bytes = 5\n"
            "nccl = true\n[[all_reduce]]\nnccl = true",
            "must rise",
        ),
        ("[[all_reduce]]\nkernel = 'nothing'", "row 1: no shipped kernel 'nothing'"),
        ("[[all_reduce]]\nkernel = 'allreduce_ll'\nnccl = true", "either kernel"),
        ("[[all_reduce]]\n", "either kernel"),
        ("[[all_reduce]]\nkernel = 'allreduce_ll'\nknobs = {pieces = 3}", "pieces"),
        ("[[all_reduce]]\nkernel = 'allreduce_ll'\nknobs = {pieces = 'a'}", "whole numbers"),
        ("[[all_reduce]]\nspeed = 3\nnccl = true", "a row has only"),
        ("measured = 3", "measured must be a text"),
        ("[[", "cannot be read"),
    ],
)
def test_a_malformed_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        read_dispatch(write(tmp_path, text))


def test_what_cannot_be_read_back_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "t.dispatch.toml"
    with pytest.raises(TableError, match="the last has none"):
        write_dispatch(path, {"all_reduce": [Row(3)]}, "today")
    with pytest.raises(TableError, match="how the rows were measured"):
        write_dispatch(path, ROWS, " ")
    assert not path.exists()


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A process group of this process only."""
    dist.init_process_group(
        "gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1
    )
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_the_choice_is_explained(alone: dist.ProcessGroup) -> None:
    comm = Dispatcher(alone, "h200x4", table=Table("measured today", ROWS))
    assert "for 4 ranks, and there are 1" in comm.explain("all_reduce", 8)
    assert comm.choose("all_reduce", 8).nccl
    comm._measured_with = 1  # as if the sheet were of one GPU
    assert comm.explain("all_reduce", 65536) == (
        "all_reduce of 65536 bytes: kernel allreduce_ll (pieces=2), the fastest "
        "(h200x4.dispatch.toml, measured today)"
    )
    assert "allreduce_two_shot (default knobs)" in comm.explain("all_reduce", 65537)
    assert "torch.distributed (NCCL): it was the fastest" in comm.explain("all_reduce", 1 << 30)
    unmeasured = Dispatcher(alone, "h200x4", table=Table(NOT_MEASURED, {}))
    unmeasured._measured_with = 1
    assert "measured to be faster yet" in unmeasured.explain("all_gather", 4)


def test_a_process_group_is_needed() -> None:
    with pytest.raises(RuntimeError, match="call init_process_group first"):
        Dispatcher()


def test_shapes_that_do_not_split_are_refused(alone: dist.ProcessGroup) -> None:
    comm = Dispatcher(alone)
    with pytest.raises(ValueError, match="not a multiple of 1 ranks"):
        comm.all_to_all(torch.tensor(1.0))


def _rank(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    comm = Dispatcher()
    x = torch.arange(24.0).view(4, 3, 2).add(100 * rank).transpose(1, 2)
    both = [x - 100 * rank, x - 100 * rank + 100]
    kept = x.clone()
    assert torch.equal(comm.all_reduce(x), both[0] + both[1])
    assert torch.equal(comm.all_gather(x), torch.stack(both))
    assert torch.equal(comm.all_to_all(x), torch.cat([b.chunk(2)[rank] for b in both]))
    a, b = torch.ones(4, 3) * (rank + 1), torch.ones(3, 2)
    assert torch.equal(comm.gemm_all_reduce(a, b), torch.full((4, 2), 9.0))
    assert torch.equal(
        comm.all_gather_gemm(a, b), torch.cat([torch.full((4, 2), 3.0), torch.full((4, 2), 6.0)])
    )
    assert torch.equal(x, kept), "inputs stay as they are"
    with_other = Table("another", {}) if rank else Table("one", {})
    with pytest.raises(ValueError, match="tables differ"):
        Dispatcher(table=with_other)
    dist.destroy_process_group()


@pytest.mark.slow
def test_without_kernels_torch_does_it(tmp_path: Path) -> None:
    spawn(_rank, args=(str(tmp_path / "store"),), nprocs=2)  # type: ignore[no-untyped-call]
