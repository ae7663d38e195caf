"""Breaches of the contract that show without running anything."""

from typing import Any

import pytest
import torch

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Dims, OutputSpec, Tensors, bench, by_rank, check
from problems.lint.validation import breaches
from tests.problems.samples import Sample

TINY, ODD, BENCH = check("tiny", M=8, N=12), check("odd", M=5, N=7), bench(M=64, N=64)

BREACHES: list[tuple[dict[str, Any], str]] = [
    ({"slug": "Two Words"}, "`slug` must be"),
    ({"slug": 3}, "`slug` must be a text"),
    ({"statement": ""}, "`statement` must be a text"),
    ({"tolerance": "T9"}, "`tolerance` must be one of T0, T1"),
    ({"peak": "int4"}, "`peak` must be one of"),
    ({"dtype": torch.quint8}, "`dtype` must be one of"),
    ({"number": "1"}, "`number` must be None"),
    ({"input_names": "x"}, "`input_names` must be a tuple"),
    ({"output_names": ("Y",)}, "'Y' must be a lower-case identifier"),
    ({"output_names": ()}, "at least one name"),
    ({"output_names": ("x",)}, "must differ"),
    ({"mutates": frozenset({"q"})}, "`mutates` names no input: q"),
    ({"replicated": frozenset({"q"})}, "`replicated` names no input: q"),
    ({"peer_dims": by_rank(q=0)}, "`peer_dims` names no output: q"),
    ({"peer_dims": by_rank(y=2)}, "'y' has no dimension 2"),
    ({"shapes": [TINY]}, "`shapes` must be a tuple"),
    ({"shapes": (TINY, ODD)}, "at least one bench shape"),
    ({"shapes": (ODD, BENCH)}, 'check shape "tiny"'),
    ({"shapes": (check("tiny", M=8, N=16), BENCH)}, "must be ragged"),
    ({"shapes": (TINY, TINY, ODD, BENCH)}, "different names"),
    ({"shapes": (TINY, check("odd", M=5), BENCH)}, "same letters"),
    ({"shapes": (TINY, check("odd", M=5, N=0), BENCH)}, "must be positive integers"),
    ({"shapes": (TINY, check("The Odd", M=5, N=7), BENCH)}, "lower-case name"),
    ({"sharded": ("M",)}, "'odd' does not divide among 2 ranks"),
    ({"sharded": ("K",)}, "names the letter 'K'"),
]


@pytest.mark.parametrize(("attributes", "message"), BREACHES)
def test_attributes(attributes: dict[str, Any], message: str) -> None:
    problem = type("Changed", (Sample,), attributes)()
    assert message in "\n".join(breaches(problem))


def test_a_sample_has_none() -> None:
    assert breaches(Sample()) == []


def test_the_reference_must_take_the_inputs() -> None:
    class Other(Sample):
        def reference(self, group: Any, z: Any) -> Tensors:
            return {}

    assert "`reference` must take (group, x)" in breaches(Other())[0]


def test_specs_must_fit_the_names() -> None:
    class Unnamed(Sample):
        def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
            return {"z": self.spec(1)}

    class Negative(Sample):
        def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
            return {"x": self.spec(dims["M"] - 8, dims["N"])}

    assert (
        "`output_specs` of shape 'tiny' at 2 ranks must be a dict with y" in breaches(Unnamed())[0]
    )
    assert "`input_specs` of shape 'tiny' at 2 ranks: 'x'" in breaches(Negative())[0]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        (Costs(-1, 1, 1, BaselineWork(None, "all_reduce", 1)), "not negative"),
        (Costs(float("nan"), 1, 1, BaselineWork(None, "all_reduce", 1)), "finite"),
        (Costs(0, 0, 0, BaselineWork(None, "all_reduce", 1)), "not all zero"),
        (Costs(1, 1, 1, BaselineWork(None, "all_sing", 1)), "all_reduce, all_gather"),
        (Costs(1, 1, 1, BaselineWork(None, None, 1)), "needs a GEMM"),
        (Costs(1, 1, 1, BaselineWork((1, 0, 1), None, 0)), "positive integers"),
        (Costs(1, 1, 1, BaselineWork(None, "all_reduce", 0)), "positive integers"),
        (Costs(1, 1, 1, BaselineWork(None, "all_reduce", 1, (0,))), "positive integers"),
        (None, "must be a Costs, got NoneType"),
    ],
)
def test_costs(costs: Any, message: str) -> None:
    class Priced(Sample):
        def costs(self, dims: Dims, world_size: int) -> Costs:
            given: Costs = costs
            return given

    assert message in breaches(Priced())[0]


def test_own_inputs_must_be_those_of_the_specs() -> None:
    class Wide(Sample):
        def make_inputs(self, rank: int, world_size: int, seed: int, dims: Dims) -> Tensors:
            return {"x": torch.ones(dims["M"], dims["N"])}

    assert "must give 'x' as torch.bfloat16[8, 12], got torch.float32[8, 12]" in breaches(Wide())[0]
