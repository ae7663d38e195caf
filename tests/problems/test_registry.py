"""The catalogue: who is in it, and that its numbers are those of the reference catalogue."""

import inspect
from pathlib import Path

import pytest
import torch

from pk_runtime.baseline import BaselineWork
from problems.collectives import all_gather, reduce_scatter
from problems.contract import Costs
from problems.errors import UnknownProblem, UnknownShape
from problems.lint.validation import breaches
from problems.registry import catalogue, get

SLUGS = {
    1: "allreduce",
    2: "allgather",
    3: "broadcast",
    4: "reduce",
    5: "scatter",
    6: "gather",
    7: "reducescatter",
    8: "alltoall",
    13: "gemm_allreduce",
    14: "gemm_allgather",
    16: "gemm_reducescatter",
    36: "ulysses_gather_seq_scatter_heads",
    37: "ulysses_gather_heads_scatter_seq",
    89: "sp_ag_gemm_m_sharded",
    98: "allgather_last_dim",
    99: "reducescatter_last_dim",
}

M = 1024
HEADS = 16 * 16 * 8 * 64  # elements of the 4-D tensors at the default size
# FLOPs, NVLink bytes and HBM bytes of one rank at the default size with four ranks.
DEFAULT_COSTS = {
    "allreduce": (0.75 * M * M, 1.5 * 2 * M * M, 4 * M * M),
    "allgather": (0, 3 * 2 * M * M, 2 * M * M * 5),
    "broadcast": (0, 2 * M * M, 4 * M * M),
    "reduce": (M * M, 2 * M * M, 4 * M * M),
    "scatter": (0, 3 * 2 * M * M, 2 * M * M * 5),
    "gather": (0, 3 * 2 * M * M, 2 * M * M * 5),
    "reducescatter": (3 * M * M, 3 * 2 * M * M, 2 * M * M * 5),
    "alltoall": (0, 3 * 2 * M * M, 4 * 4 * M * M),
    "gemm_allgather": (
        2 * M * 512 * M // 4,
        0.75 * 2 * M * M,
        2 * (M * 512 + 512 * M // 4 + M * M),
    ),
    "ulysses_gather_seq_scatter_heads": (0, 0.75 * 2 * HEADS, 2 * 2 * HEADS),
    "ulysses_gather_heads_scatter_seq": (0, 0.75 * 2 * HEADS, 2 * 2 * HEADS),
    "allgather_last_dim": (0, 3 * 2 * M * M, 2 * M * M * 5),
    "reducescatter_last_dim": (3 * M * M, 3 * 2 * M * M, 2 * M * M * 5),
    "gemm_allreduce": (2 * M * M * 512, 1.5 * 2 * M * M, 2 * (2 * M * 512 + M * M)),
    "gemm_reducescatter": (2 * M * M * 128, 0.75 * 2 * M * M, 2 * (2 * M * 128 + M * M / 4)),
    "sp_ag_gemm_m_sharded": (
        2 * M * 512 * 256,
        0.75 * 2 * M * 512,
        2 * (M * 512 / 4 + 512 * M / 4 + M * M / 4),
    ),
}
WORK = {
    "allreduce": BaselineWork(None, "all_reduce", 2 * M * M),
    "allgather": BaselineWork(None, "all_gather", 2 * M * M),
    "broadcast": BaselineWork(None, "all_gather", 2 * M * M // 3),
    "reduce": BaselineWork(None, "reduce_scatter", 2 * M * M // 3),
    "scatter": BaselineWork(None, "all_to_all", 4 * 2 * M * M),
    "gather": BaselineWork(None, "all_to_all", 4 * 2 * M * M),
    "reducescatter": BaselineWork(None, "reduce_scatter", 2 * M * M),
    "alltoall": BaselineWork(None, "all_to_all", 4 * 2 * M * M),
    "gemm_allgather": BaselineWork(
        (M, M // 4, 512), "all_gather", 2 * M * M // 4, copies=(2 * M * M,)
    ),
    "ulysses_gather_seq_scatter_heads": BaselineWork(
        None, "all_to_all", 2 * HEADS, copies=(2 * HEADS, 2 * HEADS)
    ),
    "ulysses_gather_heads_scatter_seq": BaselineWork(
        None, "all_to_all", 2 * HEADS, copies=(2 * HEADS, 2 * HEADS)
    ),
    "allgather_last_dim": BaselineWork(None, "all_gather", 2 * M * M, copies=(4 * 2 * M * M,)),
    "reducescatter_last_dim": BaselineWork(
        None, "reduce_scatter", 2 * M * M, copies=(4 * 2 * M * M,)
    ),
    "gemm_allreduce": BaselineWork((M, M, 512), "all_reduce", 2 * M * M),
    "gemm_reducescatter": BaselineWork((M, M, 128), "reduce_scatter", 2 * M * M // 4),
    "sp_ag_gemm_m_sharded": BaselineWork((M, M // 4, 512), "all_gather", 2 * M * 512 // 4),
}


def test_the_catalogue_has_these_problems() -> None:
    assert {problem.number: problem.slug for problem in catalogue()} == SLUGS


@pytest.mark.parametrize("slug", SLUGS.values())
def test_costs_at_the_default_size_are_the_catalogue_s(slug: str) -> None:
    problem = get(slug)
    costs = problem.costs(problem.shape("default").dims, 4)
    assert costs == Costs(*DEFAULT_COSTS[slug], WORK[slug])
    dims = problem.shape("default").dims
    assert problem.flops(dims, 4) == costs.flops
    assert problem.nvlink_bytes(dims, 4) == costs.nvlink_bytes
    assert problem.hbm_bytes(dims, 4) == costs.hbm_bytes
    assert problem.baseline(dims, 4) == costs.baseline


@pytest.mark.parametrize("slug", SLUGS.values())
def test_a_problem_keeps_the_contract_and_is_short(slug: str) -> None:
    problem = get(slug)
    assert breaches(problem) == []
    assert [s.name for s in problem.shapes if s.kind == "check"] == ["tiny", "odd", "default"]
    assert len(Path(inspect.getfile(type(problem))).read_text().splitlines()) <= 60


@pytest.mark.parametrize(
    ("slug", "first"),
    [
        ("gemm_allreduce", "m8192n8192k2048"),
        ("gemm_reducescatter", "m8192n8192k8192"),
        ("sp_ag_gemm_m_sharded", "m8192n8192k8192"),
        ("gemm_allgather", "m8192n8192k8192"),
        ("allreduce", "m8192n4096"),
        ("ulysses_gather_seq_scatter_heads", "b1t1024h128d128"),
        ("ulysses_gather_heads_scatter_seq", "b1t4096h32d128"),
    ],
)
def test_the_measured_size_comes_first(slug: str, first: str) -> None:
    assert next(s.name for s in get(slug).shapes if s.kind == "bench") == first


@pytest.mark.parametrize("asked", ["gemm_reducescatter", "16", 16])
def test_get_takes_slug_and_number(asked: str | int) -> None:
    assert get(asked).number == 16


def test_an_unknown_problem_names_near_matches() -> None:
    with pytest.raises(UnknownProblem, match="gemm_reducescatter") as caught:
        get("gemm-reduce-scatter")
    assert caught.value.near[0] == "gemm_reducescatter"
    with pytest.raises(UnknownProblem, match=r"Known: allreduce \(1\)"):
        get("zzz")


def test_an_unknown_shape_lists_the_known_ones() -> None:
    with pytest.raises(UnknownShape, match="tiny, odd, default"):
        get(1).shape("huge")


@pytest.mark.parametrize("slug", SLUGS.values())
def test_inputs_depend_on_seed_and_rank_alone(slug: str) -> None:
    problem = get(slug)
    dims = problem.shape("tiny").dims
    first = problem.make_inputs(0, 4, 5, dims)
    for name, tensor in first.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, problem.make_inputs(0, 4, 5, dims)[name])
        other = problem.make_inputs(1, 4, 5, dims)[name]
        assert torch.equal(tensor, other) == (name in problem.replicated)
        assert not torch.equal(tensor, problem.make_inputs(0, 4, 6, dims)[name])


def test_the_current_names_of_the_collectives_are_taken() -> None:
    # torch 2.13 warns about the old ones, and warnings are errors here.
    assert callable(all_gather)
    assert callable(reduce_scatter)
