"""Comparison: nothing malformed passes, every mistake is located, the summary says what to fix."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from problems.answers.compare import Checker, changed_inputs, compare, input_digests
from problems.answers.findings import Comparison, Finding
from problems.contract import Tensors
from problems.description import describe
from problems.hosting import InProcessHost
from problems.registry import catalogue, get
from tests.problems.samples import SEED, copied, materialized

SLUGS = [problem.slug for problem in catalogue()]
Spoil = Callable[[list[Tensors]], Any]


def spoiled(slug: str, spoil: Spoil, world_size: int = 4, shape: str = "tiny") -> Comparison:
    """The comparison of the reference's outputs after `spoil` has changed them."""
    call = materialized(slug, world_size, shape)
    results: Any = copied(call.reference)
    replaced = spoil(results)
    results = results if replaced is None else replaced
    return compare(get(slug), call.golden, call.reference, results)


def only(comparison: Comparison) -> Finding:
    """The one finding of a comparison that failed."""
    assert not comparison.ok
    (finding,) = comparison.findings
    return finding


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("shape", ["tiny", "odd"])
def test_the_reference_is_right(slug: str, world_size: int, shape: str) -> None:
    comparison = spoiled(slug, lambda results: None, world_size, shape)
    assert comparison.ok
    assert comparison.findings == ()
    assert f"All outputs of all {world_size} ranks are right" in comparison.summary


def nested(replace: Callable[[Tensor], Any]) -> Spoil:
    """Replace one output of one rank."""

    def spoil(results: list[Tensors]) -> None:
        name = next(iter(results[1]))
        results[1][name] = replace(results[1][name])

    return spoil


class Pretender(Tensor):
    """A tensor that could answer comparisons as it likes."""


MALFORMED: dict[str, tuple[Spoil, str]] = {
    "none": (lambda results: [None] * 4, "missing"),
    "one none": (lambda results: [*results[:3], None], "missing"),
    "empty list": (lambda results: [], "missing"),
    "short list": (lambda results: results[:3], "missing"),
    "long list": (lambda results: [*results, results[0]], "missing"),
    "no list": (lambda results: dict(enumerate(results)), "missing"),
    "text": (lambda results: "abcd", "missing"),
    "empty mapping": (lambda results: [*results[:3], {}], "missing"),
    "surplus output": (lambda results: [*results[:3], {**results[3], "z": 1}], "missing"),
    "none output": (nested(lambda t: None), "missing"),
    "list output": (nested(lambda t: t.tolist()), "missing"),
    "number output": (nested(lambda t: 0.0), "missing"),
    "numpy output": (nested(lambda t: t.float().numpy()), "missing"),
    "sparse output": (nested(lambda t: t.to_sparse()), "missing"),
    "tensor subclass": (nested(lambda t: t.as_subclass(Pretender)), "missing"),
    "fewer rows": (nested(lambda t: t[:-1]), "shape"),
    "flat": (nested(lambda t: t.reshape(-1)), "shape"),
    "broadcastable": (nested(lambda t: t[..., :1]), "shape"),
    "empty": (nested(lambda t: t[:0]), "shape"),
    "scalar": (nested(lambda t: t.sum()), "shape"),
    "fp32": (nested(lambda t: t.float()), "dtype"),
    "fp16": (nested(lambda t: t.half()), "dtype"),
    "int16": (nested(lambda t: t.view(torch.int16)), "dtype"),
}


@pytest.mark.parametrize("slug", ["allreduce", "alltoall"])
@pytest.mark.parametrize("what", MALFORMED)
def test_nothing_malformed_passes(slug: str, what: str) -> None:
    spoil, kind = MALFORMED[what]
    comparison = spoiled(slug, spoil)
    assert not comparison.ok
    assert comparison.findings[0].kind == kind
    assert comparison.summary
    json.dumps(comparison.to_json(), allow_nan=False)


@pytest.mark.parametrize("slug", ["allreduce", "alltoall"])
@pytest.mark.parametrize("what", MALFORMED)
def test_accepts_agrees_with_compare(slug: str, what: str) -> None:
    call = materialized(slug, 4)
    checker = Checker(get(slug), call.golden, call.reference)
    results: Any = copied(call.reference)
    assert checker.accepts(results)
    replaced = MALFORMED[what][0](results)
    assert not checker.accepts(results if replaced is None else replaced)


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_fails(slug: str, value: float) -> None:
    def spoil(results: list[Tensors]) -> None:
        for tensor in results[2].values():
            tensor.view(-1)[7] = value

    finding = only(spoiled(slug, spoil))
    assert (finding.kind, finding.rank) == ("nan", 2)
    assert "never written" in finding.text


def test_a_wrong_part_names_its_peer_and_the_first_element() -> None:
    def spoil(results: list[Tensors]) -> None:
        results[3]["y"][1] = 0

    comparison = spoiled("alltoall", spoil)
    finding = only(comparison)
    expected = materialized("alltoall", 4).golden[3]["y"][1, 0, 0]
    assert (finding.kind, finding.output, finding.rank, finding.owner) == ("peer_slice", "y", 3, 1)
    assert finding.first_bad == (1, 0, 0)
    assert (finding.expected, finding.seen) == (float(expected), 0.0)
    assert finding.fraction_bad == pytest.approx(0.25, rel=0.01)
    assert "y on rank 3 of 4" in comparison.summary
    assert "the part of rank 1" in comparison.summary


def test_regions_and_their_sizes() -> None:
    def band(results: list[Tensors]) -> None:
        results[0]["c"][5:9] += 1

    def block(results: list[Tensors]) -> None:
        results[0]["c"][4:12, 8:24] += 1

    def edge(results: list[Tensors]) -> None:
        results[0]["c"][:, 128:] = 0

    assert only(spoiled("gemm_allreduce", band)).kind == "row_band"
    tile = only(spoiled("gemm_allreduce", block))
    assert tile.kind == "tile"
    assert tile.fraction_bad == pytest.approx(8 * 16 / 64**2)
    assert tile.max_abs == pytest.approx(1, rel=0.1)
    assert tile.limit is not None
    assert only(spoiled("gemm_reducescatter", edge, shape="odd")).kind == "boundary"


def test_a_constant_factor_is_named() -> None:
    comparison = spoiled("allreduce", lambda results: [{"y": r["y"] / 4} for r in results])
    assert {finding.kind for finding in comparison.findings} == {"scale"}
    assert "0.25 times what it should be" in comparison.summary


def test_too_much_rounding_is_named_where_no_element_is_far_off() -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy(results: list[Tensors]) -> None:
        tensor = results[0]["c"]
        noise = torch.rand(tensor.shape, generator=generator) - 0.5
        rms = float(tensor.double().square().mean().sqrt())
        tensor += 0.035 * rms * noise.bfloat16()

    finding = only(spoiled("gemm_allreduce", noisy))
    assert finding.kind == "precision"
    assert "rounds more often than the reference" in finding.text


def test_ranks_with_the_same_mistake_are_told_once() -> None:
    comparison = spoiled("gemm_allreduce", lambda results: [{"c": r["c"] * 0} for r in results])
    assert len(comparison.findings) == 4
    assert comparison.summary.count("of the elements are wrong") == 1
    assert "c on all 4 ranks" in comparison.summary


def test_findings_become_plain_json() -> None:
    comparison = spoiled("allreduce", lambda results: [{"y": r["y"] * math.nan} for r in results])
    text = json.dumps(comparison.to_json(), allow_nan=False)
    first = json.loads(text)["findings"][0]
    assert first["seen"] == "nan"
    assert first["first_bad"] == [0, 0]


def test_a_description_will_do_in_place_of_the_problem() -> None:
    call = materialized("allgather", 4)
    description = describe(get("allgather"), 4)
    assert compare(description, call.golden, call.reference, call.reference).ok


def test_the_bank_is_made_only_for_wrong_values() -> None:
    call = materialized("allreduce", 2)
    made = []

    def bank() -> tuple[()]:
        made.append(1)
        return ()

    problem = get("allreduce")
    assert compare(problem, call.golden, call.reference, call.reference, bank=bank).ok
    assert not compare(problem, call.golden, call.reference, [None, None], bank=bank).ok
    assert not made
    wrong = [{"y": -rank["y"]} for rank in call.reference]
    assert not compare(problem, call.golden, call.reference, wrong, bank=bank).ok
    assert made == [1]


def test_changed_inputs_are_found_unless_they_may_change() -> None:
    inputs = InProcessHost(get("gemm_allreduce")).materialize("tiny", 2, SEED).inputs
    digests = input_digests(inputs)
    assert changed_inputs(digests, inputs) == ()
    inputs[1]["a"][0, 0] = -inputs[1]["a"][0, 0]
    assert changed_inputs(digests, inputs) == ((1, "a"),)
    assert changed_inputs(digests, inputs, frozenset({"a"})) == ()
    del inputs[0]["b"]
    assert changed_inputs(digests, inputs, frozenset({"a"})) == ((0, "b"),)
