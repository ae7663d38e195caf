"""What one rank of the benchmark does with its rows, with the GPU parts replaced."""

from typing import Any

import pytest
import torch

from benchmarks.gpu import rank_process
from benchmarks.gpu.case import Ranks
from benchmarks.gpu.contenders import Built, NotApplicable, Prepared
from benchmarks.gpu.points import Point
from benchmarks.gpu.rank_process import INPUTS, Plan
from benchmarks.gpu.timing import Entry, LostError
from problems.registry import get

POINT = Point("s", "all-reduce", "1 KiB", "allreduce", {"M": 4, "N": 128}, (), ("torch_one_shot",))
FAST, SLOW, WRONG = (Built("k", {"depth": depth}) for depth in (1, 2, 3))
TIMES = {"nccl eager": 30.0, "nccl graph": 20.0, FAST.name: 10.0, SLOW.name: 15.0, WRONG.name: 1.0}


class Heap:
    """One rank that agrees with itself, or with another one that says something else."""

    def __init__(self) -> None:
        self.others: dict[str, Any] = {}

    def agree(self, what: str, value: Any) -> list[Any]:
        return [value, *([self.others[what]] if what in self.others else [])]

    def barrier(self) -> None:
        pass


class FakeCase:
    """Stands for Case: no tensors."""

    def __init__(self, ranks: Any, problem: str, dims: Any, key: str) -> None:
        self.ranks, self.key, self.dims = ranks, key, dict(dims)
        self.problem = get(problem)
        self.sets: list[dict[str, Any]] = [{}]


class Pipe(list[Any]):
    def send(self, message: Any) -> None:
        self.append(message)


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Any:
    def no_torch(case: Any) -> Prepared:
        raise NotApplicable("not here")

    def make_ready(case: Any, entry: Entry) -> None:
        entry.error = 0.5 if entry.name.startswith(WRONG.name) else 0.001

    def time_rounds(ranks: Any, entries: list[Entry], rounds: int, announce: Any) -> None:
        for entry in entries:
            staged = 2.0 if entry.name.endswith(", staged") else 0.0
            entry.times_us = [TIMES[entry.name.removesuffix(", staged")] + staged] * rounds

    def contender_of(name: str) -> Any:
        return no_torch if name.startswith("torch") else lambda case: Prepared([])

    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(rank_process, "Case", FakeCase)
    monkeypatch.setattr(rank_process, "contender_of", contender_of)
    monkeypatch.setattr(rank_process, "make_ready", make_ready)
    monkeypatch.setattr(rank_process, "time_rounds", time_rounds)
    monkeypatch.setattr(rank_process, "check_again", lambda case, entry: entry.error)
    monkeypatch.setattr(rank_process, "ours", lambda case, built, staged=False: Prepared([], 132))
    monkeypatch.setattr(rank_process, "wait", lambda: None)
    heap: Any = Heap()
    group: Any = None
    return Ranks(0, 1, group, heap)


def run(ranks: Any, skip: dict[tuple[str, str], str] | None = None) -> tuple[Pipe, dict[str, Any]]:
    plan = Plan(1, "", (POINT,), {POINT.key: (FAST, SLOW, WRONG)}, skip or {}, 3, 0.0)
    pipe: Any = Pipe()
    rank_process._run_row(ranks, plan, POINT, pipe)
    kind, key, record, _ = pipe[-1]
    assert (kind, key) == ("row", POINT.key)
    return pipe, record


def test_a_row_has_every_contender_and_the_fastest_right_kernel_staged(ranks: Any) -> None:
    pipe, record = run(ranks)
    found = {c["name"]: c for c in record["contenders"]}
    assert list(found) == [
        *("nccl eager", "nccl graph", FAST.name, SLOW.name, WRONG.name),
        f"{FAST.name}, staged",
    ]
    assert found["nccl graph"]["us"] == 20.0
    assert (found[FAST.name]["kernel"], found[FAST.name]["knobs"]) == ("k", {"depth": 1})
    assert found[f"{FAST.name}, staged"]["us"] == 12.0
    assert found[FAST.name]["right"]
    assert not found[WRONG.name]["right"]
    assert record["failed"] == [("torch_one_shot", "rank 0: not here")]
    assert ("begin", POINT.key, FAST.name) in pipe


def test_what_lost_the_processes_before_is_left_out_with_its_reason(ranks: Any) -> None:
    skip = {(POINT.key, FAST.name): "rank 1: hung", (POINT.key, f"{SLOW.name}, staged"): "so too"}
    pipe, record = run(ranks, skip)
    names = [c["name"] for c in record["contenders"]]
    assert names == ["nccl eager", "nccl graph", SLOW.name, WRONG.name]
    assert (FAST.name, "rank 1: hung") in record["failed"]
    assert ("begin", POINT.key, FAST.name) not in pipe


def test_a_contender_that_fails_on_another_rank_is_out_on_this_one(ranks: Any) -> None:
    ranks.heap.others[f"prepare {FAST.name}"] = "LaunchError: no memory"
    _, record = run(ranks)
    assert FAST.name not in [c["name"] for c in record["contenders"]]
    assert (FAST.name, "rank 1: LaunchError: no memory") in record["failed"]


def test_inputs_that_cannot_be_made_end_the_row_only(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(rank_process, "Case", no_memory)
    _, record = run(ranks)
    assert record["contenders"] == []
    assert record["failed"] == [(INPUTS, "rank 0: RuntimeError: CUDA out of memory")]


def test_a_gpu_that_gave_up_ends_the_rank(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(case: Any, entry: Entry) -> None:
        raise LostError("the GPU gave up: rank 1 waits")

    monkeypatch.setattr(rank_process, "make_ready", lost)
    with pytest.raises(LostError, match="rank 1 waits"):
        run(ranks)


def test_the_worst_error_of_any_rank_counts(ranks: Any) -> None:
    ranks.heap.others["the errors"] = 0.25
    assert rank_process._worst(ranks, 0.001) == 0.25
    assert rank_process._worst(ranks, None) == 0.25
    ranks.heap.others["the errors"] = None
    assert rank_process._worst(ranks, float("nan")) == rank_process.HOPELESS
    assert rank_process._worst(ranks, None) is None
