"""The bank: each known wrong answer is recognised, and named with what it means."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from problems.answers.compare import compare
from problems.answers.findings import Comparison
from problems.answers.tolerance import Rule
from problems.answers.wrong_answers import WrongAnswer, bank, match
from problems.contract import Tensors
from problems.hosting import InProcessHost, Materialized
from problems.registry import catalogue, get

SLUGS = [problem.slug for problem in catalogue()]
ROOTED = ["broadcast", "reduce", "scatter", "gather"]
REDUCTIONS = ["allreduce", "gemm_allreduce", "gemm_reducescatter"]
Outputs = Sequence[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Call:
    """A call with its bank, and the right outputs of the call before."""

    slug: str
    made: Materialized
    defective: dict[str, list[Tensors]]
    previous: list[Tensors]

    def bank(self) -> tuple[WrongAnswer, ...]:
        return self.made.bank(self.defective, self.previous)

    def judge(self, outputs: Outputs) -> Comparison:
        dtype = get(self.slug).dtype
        results = [{name: t.to(dtype, copy=True) for name, t in r.items()} for r in outputs]
        golden, reference = self.made.golden, self.made.reference
        return compare(get(self.slug), golden, reference, results, bank=self.bank)


@pytest.fixture(scope="module")
def call() -> Callable[[str, int], Call]:
    """Makes calls, each once."""
    made: dict[tuple[str, int], Call] = {}

    def make(slug: str, world_size: int = 4) -> Call:
        if (slug, world_size) not in made:
            host = InProcessHost(get(slug))
            made[slug, world_size] = Call(
                slug,
                host.materialize("tiny", world_size, 3),
                host.defective("tiny", world_size, 3),
                host.materialize("tiny", world_size, 2).reference,
            )
        return made[slug, world_size]

    return make


def names(comparison: Comparison) -> set[str | None]:
    """The known wrong answers that a failed comparison names."""
    assert not comparison.ok
    return {finding.match.name if finding.match else None for finding in comparison.findings}


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_every_answer_of_the_bank_is_right_or_recognised(
    slug: str, world_size: int, call: Callable[..., Call]
) -> None:
    this = call(slug, world_size)
    recognised = 0
    for answer in this.bank():
        if any(set(rank) != set(get(slug).output_names) for rank in answer.outputs):
            continue
        comparison = this.judge(answer.outputs)
        for finding in comparison.findings:
            assert finding.match is not None, (answer.name, comparison.summary)
            named = {finding.match.name, *finding.match.also}
            assert answer.name in named, (answer.name, comparison.summary)
            assert finding.match.meaning in comparison.summary
            recognised += 1
    assert recognised >= 5 * world_size


@pytest.mark.parametrize("slug", SLUGS)
def test_zeros(slug: str, call: Callable[..., Call]) -> None:
    this = call(slug)
    zeros = [{n: torch.zeros_like(t) for n, t in r.items()} for r in this.made.reference]
    comparison = this.judge(zeros)
    assert names(comparison) == {"zeros"}
    assert "never written" in comparison.summary


@pytest.mark.parametrize("slug", SLUGS)
def test_the_previous_call_s_output_is_stale(slug: str, call: Callable[..., Call]) -> None:
    comparison = call(slug).judge(call(slug).previous)
    assert names(comparison) == {"prev_iter_output"}
    assert {finding.kind for finding in comparison.findings} == {"stale"}
    assert "old signal" in comparison.summary


@pytest.mark.parametrize("slug", ["allreduce", "alltoall"])
def test_the_own_input(slug: str, call: Callable[..., Call]) -> None:
    this = call(slug)
    comparison = this.judge([{"y": rank["x"]} for rank in this.made.inputs])
    assert names(comparison) == {"own_input:x"}


@pytest.mark.parametrize("slug", ["gemm_allreduce", "gemm_reducescatter", "sp_ag_gemm_m_sharded"])
def test_an_unreduced_partial(slug: str, call: Callable[..., Call]) -> None:
    comparison = call(slug).judge(call(slug).defective["local"])
    assert names(comparison) == {"unreduced_partial"}
    assert "nothing from any peer" in comparison.summary


@pytest.mark.parametrize("slug", ROOTED)
def test_a_rank_that_the_root_or_its_peers_miss(slug: str, call: Callable[..., Call]) -> None:
    for rank in range(4):
        comparison = call(slug).judge(call(slug).defective[f"without:{rank}"])
        assert comparison.ok == (rank not in get(slug).contributors(4))
        for finding in comparison.findings:
            assert finding.match is not None
            named = {finding.match.name, *finding.match.also}
            assert f"output_without_rank_{rank}" in named


@pytest.mark.parametrize("slug", sorted(set(SLUGS) - set(ROOTED)))
@pytest.mark.parametrize("rank", range(4))
def test_a_missing_rank(slug: str, rank: int, call: Callable[..., Call]) -> None:
    comparison = call(slug).judge(call(slug).defective[f"without:{rank}"])
    assert names(comparison) == {f"output_without_rank_{rank}"}
    assert (
        f"All these ranks miss rank {rank}: look at what rank {rank} stores" in comparison.summary
    )


def test_each_rank_missing_another_one_points_at_the_receivers(call: Callable[..., Call]) -> None:
    this = call("gemm_reducescatter")
    missing = [this.defective[f"without:{(rank + 1) % 4}"][rank] for rank in range(4)]
    comparison = this.judge(missing)
    assert len(names(comparison)) == 4
    assert "rank 3 misses 0): look at the receivers' waits" in comparison.summary


def test_one_rank_missing_a_peer_points_at_its_wait(call: Callable[..., Call]) -> None:
    this = call("gemm_allreduce")
    results = [*this.made.reference[:3], this.defective["without:1"][3]]
    comparison = this.judge(results)
    assert names(comparison) == {"output_without_rank_1"}
    assert "Only this rank misses it" in comparison.summary


@pytest.mark.parametrize("slug", REDUCTIONS)
@pytest.mark.parametrize("rank", range(4))
def test_a_contribution_counted_twice(slug: str, rank: int, call: Callable[..., Call]) -> None:
    comparison = call(slug).judge(call(slug).defective[f"twice:{rank}"])
    assert names(comparison) == {f"twice_rank_{rank}"}


def test_everything_counted_twice_is_a_factor(call: Callable[..., Call]) -> None:
    this = call("gemm_reducescatter")
    comparison = this.judge([{"c": 2 * rank["c"]} for rank in this.made.golden])
    assert {finding.kind for finding in comparison.findings} == {"scale"}


@pytest.mark.parametrize("slug", ["gemm_reducescatter", "sp_ag_gemm_m_sharded", "alltoall"])
def test_another_rank_s_output(slug: str, call: Callable[..., Call]) -> None:
    this = call(slug)
    comparison = this.judge([this.made.golden[(rank + 1) % 4] for rank in range(4)])
    assert names(comparison) == {"other_rank_output:rank+1"}


@pytest.mark.parametrize(("factor", "name"), [(4.0, "scaled_by_W"), (0.25, "scaled_by_1/W")])
@pytest.mark.parametrize("slug", REDUCTIONS)
def test_scaled_by_the_world_size(
    slug: str, factor: float, name: str, call: Callable[..., Call]
) -> None:
    this = call(slug)
    scaled = [{n: factor * t for n, t in rank.items()} for rank in this.made.golden]
    assert names(this.judge(scaled)) == {name}


@pytest.mark.parametrize("slug", ["allgather", "alltoall"])
def test_parts_in_the_wrong_places(slug: str, call: Callable[..., Call]) -> None:
    this = call(slug)
    moved = [{"y": rank["y"].roll(1, 0)} for rank in this.made.reference]
    assert names(this.judge(moved)) == {"parts_moved:+1"}


def test_a_single_stale_tile_is_recognised(call: Callable[..., Call]) -> None:
    this = call("gemm_reducescatter")
    results = [{"c": rank["c"].clone()} for rank in this.made.reference]
    results[2]["c"][:8, 16:32] = this.previous[2]["c"][:8, 16:32]
    comparison = this.judge(results)
    (finding,) = comparison.findings
    assert (finding.kind, finding.rank) == ("stale", 2)
    assert "one block of 8 x 16" in finding.text


def test_another_rank_s_output_of_an_all_reduce_is_right(call: Callable[..., Call]) -> None:
    this = call("allreduce")
    assert this.judge([this.made.reference[(rank + 1) % 4] for rank in range(4)]).ok


def test_an_unknown_mistake_gets_no_cause(call: Callable[..., Call]) -> None:
    this = call("allreduce")
    comparison = this.judge([{"y": rank["y"].flip(0)} for rank in this.made.reference])
    assert names(comparison) == {None}


def test_a_transposed_result(call: Callable[..., Call]) -> None:
    this = call("allreduce")
    turned = [{"y": rank["y"].mT.contiguous()} for rank in this.made.golden]
    assert turned[0]["y"].shape == this.made.golden[0]["y"].shape, "tiny is square"
    assert names(this.judge(turned)) == {"transposed"}


def test_two_peers_in_each_other_s_place(call: Callable[..., Call]) -> None:
    this = call("allgather")
    swapped = [{"y": rank["y"][[0, 1, 3, 2]]} for rank in this.made.reference]
    assert names(this.judge(swapped)) == {"swapped_peers:2,3"}


def test_sums_in_bf16_where_fp32_is_asked() -> None:
    exact = [{"y": torch.randn(32, 32, dtype=torch.float64)} for _ in range(2)]
    reference = [{"y": rank["y"].float()} for rank in exact]
    coarse = [{"y": rank["y"].bfloat16().float()} for rank in exact]
    answers = bank(reference, exact, reference)
    rule = Rule("T2", exact[0]["y"], reference[0]["y"])
    errors = rule.errors(coarse[0]["y"])
    hit = match(answers, rule, 0, "y", coarse[0]["y"], errors.bad)
    assert hit is not None
    assert hit.name == "rounded_to_bf16"
