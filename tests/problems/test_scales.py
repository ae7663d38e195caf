"""The scale of inputs: drawn from the seed, exact, the same wherever inputs are drawn."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from problems.answers.compare import compare
from problems.contract import OutputSpec
from problems.description import Description, describe
from problems.errors import WireError
from problems.hosting import InProcessHost
from problems.lint.validation import breaches
from problems.registry import catalogue, get
from problems.scales import MOST, USUAL, exponent, scaled, span, span_of, told
from tests.problems.samples import Sample

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def specs(*dtypes: torch.dtype) -> dict[str, OutputSpec]:
    return {f"t{number}": OutputSpec((2,), dtype) for number, dtype in enumerate(dtypes)}


def test_every_exponent_is_as_likely_and_a_seed_always_gives_the_same() -> None:
    drawn = Counter(exponent((-10, 10), seed) for seed in range(21_000))
    assert set(drawn) == set(range(-10, 11))
    assert all(850 < count < 1150 for count in drawn.values())
    assert {exponent((0, 0), seed) for seed in range(9)} == {0}
    assert exponent((-10, 10), 1 << 62) == exponent((-10, 10), 1 << 62)


def test_the_narrowest_tensor_decides_unless_the_problem_does() -> None:
    assert span(None, specs(BF16), specs(torch.float32)) == (-10, 10)
    assert span(None, specs(BF16, torch.float16), specs(BF16)) == (-4, 4)
    assert span(None, specs(torch.float32), specs(torch.float16)) == (-4, 4)
    assert span(None, specs(FP8, torch.float32), specs(BF16)) == (0, 0)
    assert span((-2, 3), specs(BF16), specs(BF16)) == (-2, 3)
    for stated in (None, (-2, 3)):
        assert span(stated, specs(torch.int32), specs(BF16)) == (0, 0), "nothing can be scaled"


@pytest.mark.parametrize("dtype", USUAL)
def test_scaling_is_exact_and_leaves_the_given_tensors_alone(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(999, generator=generator).clamp(-4, 4).to(dtype)
    kept, indices = values.clone(), torch.arange(5)
    for k in (*USUAL[dtype], 2):
        made = scaled({"x": values, "i": indices}, k)
        assert made["i"] is indices
        assert made["x"].dtype == dtype
        wide = torch.complex128 if dtype.is_complex else torch.float64
        exact = values.to(wide) * 2.0**k
        # Only the smallest numbers of fp16 lose bits, far below the rounding of a result.
        error = float((made["x"].to(wide) - exact).abs().max())
        assert error <= (2.0**-25 if dtype == torch.float16 and k < 0 else 0.0)
    assert torch.equal(values.view(torch.uint8), kept.view(torch.uint8))


def test_a_drawn_call_is_the_problem_s_own_times_its_scale() -> None:
    problem, seen = get("gemm_reducescatter"), set()
    dims = problem.shape("tiny").dims
    for seed in range(8):
        made = InProcessHost(problem).materialize("tiny", 4, seed)
        k = exponent(span_of(problem, dims, 4), seed)
        description = describe(problem, 4)
        assert k == description.exponent(description.shape("tiny"), seed)
        for rank in range(4):
            own = problem.make_inputs(rank, 4, seed, dims)
            for name, tensor in own.items():
                assert torch.equal(made.inputs[rank][name], tensor * 2.0**k)
        rms = float(made.golden[0]["c"].square().mean().sqrt())
        assert rms / 4.0**k == pytest.approx(1.0, rel=0.2)
        seen.add(k)
    assert len(seen) > 4


def test_a_problem_that_states_one_scale_is_never_scaled() -> None:
    class OneScale(Sample):
        scales = (0, 0)

    problem = OneScale()
    for seed in range(5):
        made = InProcessHost(problem).materialize("tiny", 2, seed)
        own = problem.make_inputs(1, 2, seed, problem.shape("tiny").dims)
        assert torch.equal(made.inputs[1]["x"], own["x"])


def test_the_catalogue_is_checked_at_the_usual_scales() -> None:
    for problem in catalogue():
        assert span_of(problem, problem.shape("tiny").dims, 2) == (-10, 10), problem.slug


OUT_OF_FORM = [(1, 3), (-3, -1), (0, MOST + 1), (-MOST - 1, 0), (0,), (0.0, 1), (True, 1), "all"]


@pytest.mark.parametrize("stated", OUT_OF_FORM)
def test_a_range_out_of_form_is_a_breach(stated: Any) -> None:
    class Bad(Sample):
        scales = stated

    (message,) = breaches(Bad())
    assert "`scales` must be None or two integers (lowest, highest)" in message
    data = describe(Sample(), 2).to_json()
    with pytest.raises(WireError, match="scales"):
        Description.from_json({**data, "scales": stated})


def test_a_range_survives_json() -> None:
    class Narrow(Sample):
        scales = (-1, 2)

    assert not breaches(Narrow())
    for problem in (Narrow(), Sample()):
        made = describe(problem, 2)
        assert Description.from_json(made.to_json()) == made
    old = {key: value for key, value in describe(Sample(), 2).to_json().items() if key != "scales"}
    assert Description.from_json(old).scales is None


def test_scales_are_told_in_a_few_words() -> None:
    assert told([-3]) == told([-3, -3]) == "2^-3"
    assert told([4, -9, 0]) == "2^-9 to 2^4"


KERNELS: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("flushes small values", lambda y, exact: torch.where(exact.abs() < 1e-3, 0.0, y)),
    ("clamps large values", lambda y, exact: y.clamp(-8, 8)),
    ("adds an epsilon", lambda y, exact: y + 1e-3),
]


@pytest.mark.parametrize(("what", "spoil"), KERNELS, ids=[what for what, _ in KERNELS])
def test_what_is_right_at_one_scale_is_caught_at_others(
    what: str, spoil: Callable[[Tensor, Tensor], Tensor]
) -> None:
    problem, verdicts = get("allreduce"), []
    for k in (0, *range(-10, 11, 5)):
        inputs = [scaled(problem.make_inputs(r, 4, 3, {"M": 64, "N": 64}), k) for r in range(4)]
        golden = problem.golden(inputs)
        right = [{"y": rank["y"].to(BF16)} for rank in golden]
        wrong = [{"y": spoil(rank["y"], rank["y"]).to(BF16)} for rank in golden]
        assert compare(problem, golden, right, right).ok, "the honest twin"
        verdicts.append(compare(problem, golden, right, wrong).ok)
    assert verdicts[0], f"a kernel that {what} is right at scale 1"
    assert not all(verdicts)
