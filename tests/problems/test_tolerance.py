"""The tolerance classes: what each accepts and what it refuses."""

import math

import pytest
import torch
from torch import Tensor

from problems.answers.compare import Checker, compare
from problems.answers.tolerance import Rule
from problems.contract import Tolerance
from problems.errors import InvalidProblem
from problems.hosting import InProcessHost
from problems.registry import catalogue, get
from tests.problems.samples import copied, materialized

REDUCTIONS = ("allreduce", "gemm_allreduce", "gemm_reducescatter")
GOLDEN = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).double()


def rule(tolerance: Tolerance, dtype: torch.dtype, golden: Tensor = GOLDEN) -> Rule:
    """A rule whose reference is the golden rounded once."""
    return Rule(tolerance, golden, golden.to(dtype))


def test_t0_accepts_the_same_bits_only() -> None:
    values = torch.tensor([0.0, 1.5, math.nan, math.inf]).bfloat16()
    exact = Rule("T0", values, values)
    assert exact.accepts(values.clone())
    minus_zero = values.clone()
    minus_zero[0] = -0.0
    assert not exact.accepts(minus_zero)
    next_up = (values.view(torch.int16) + 1).view(torch.bfloat16)
    assert exact.errors(next_up).bad.tolist() == [True] * 4


def test_t0_compares_integers_and_booleans() -> None:
    numbers = torch.arange(6)
    assert Rule("T0", numbers, numbers).accepts(numbers.clone())
    assert not Rule("T0", numbers, numbers).accepts(numbers.flip(0))
    flags = numbers > 2
    assert Rule("T0", flags, flags).errors(~flags).bad.all()


@pytest.mark.parametrize("slug", REDUCTIONS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_t1_accepts_accumulation_in_fp32(slug: str, world_size: int) -> None:
    call = materialized(slug, world_size)
    better = [{name: t.float().bfloat16() for name, t in rank.items()} for rank in call.golden]
    verdict = compare(get(slug), call.golden, call.reference, better)
    assert verdict.ok, verdict.summary
    assert compare(get(slug), call.golden, call.reference, call.reference).ok


@pytest.mark.parametrize("slug", REDUCTIONS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_t1_refuses_a_missing_rank_however_it_rounds(slug: str, world_size: int) -> None:
    host = InProcessHost(get(slug))
    call = host.materialize("tiny", world_size, 1)
    checker = Checker(get(slug), call.golden, call.reference)
    for rank in range(world_size):
        defective = host.defective("tiny", world_size, 1)
        assert not checker.accepts(defective[f"without:{rank}"])


def test_t1_refuses_a_sum_rounded_to_bf16_at_every_step_of_the_contraction() -> None:
    problem, call = get("gemm_allreduce"), materialized("gemm_allreduce", 2)
    total = torch.zeros(64, 64, dtype=torch.bfloat16)
    for rank in call.inputs:
        for k in range(64):
            total += rank["a"][:, k : k + 1] * rank["b"][k]
    verdict = compare(problem, call.golden, call.reference, [{"c": total}, {"c": total}])
    assert not verdict.ok


def test_t1_refuses_errors_that_only_the_rms_shows() -> None:
    golden = GOLDEN.sigmoid() / 2 + 0.5
    errors = rule("T1", torch.bfloat16, golden).errors((golden + 2.5 * 2.0**-8).bfloat16())
    assert not errors.bad.any()
    assert not errors.ok
    assert errors.rms_error is not None
    assert errors.rms_limit is not None
    assert errors.rms_error > errors.rms_limit


def test_t1_is_finer_for_fp16() -> None:
    assert rule("T1", torch.float16).accepts(GOLDEN.half())
    assert not rule("T1", torch.float16).accepts(GOLDEN.bfloat16().half())


@pytest.mark.parametrize(
    ("tolerance", "dtype", "fine", "coarse"),
    [
        ("T1", torch.bfloat16, 2.0**-8, 2.0**-5),
        ("T2", torch.float32, 5e-6, 1e-3),
        ("T3", torch.float64, 5e-13, 1e-9),
    ],
)
def test_accepts_small_errors_and_refuses_large_ones(
    tolerance: Tolerance, dtype: torch.dtype, fine: float, coarse: float
) -> None:
    signs = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0).double()
    exact = rule(tolerance, dtype)
    assert exact.accepts((GOLDEN + 0.5 * fine * signs).to(dtype))
    refused = exact.errors((GOLDEN + 4 * coarse * signs).to(dtype))
    assert not refused.ok
    assert refused.bad.float().mean() > 0.5


@pytest.mark.parametrize(("tolerance", "dtype"), [("T1", torch.bfloat16), ("T2", torch.float32)])
def test_not_a_number_is_right_only_where_the_golden_has_it(
    tolerance: Tolerance, dtype: torch.dtype
) -> None:
    golden = GOLDEN.clone()
    golden[0, :4] = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    exact = rule(tolerance, dtype, golden)
    result = golden.to(dtype)
    assert exact.accepts(result)
    for wrong in (0.0, math.nan, math.inf, -math.inf):
        for column in range(4):
            spoiled = result.clone()
            spoiled[0, column] = wrong
            same = torch.equal(spoiled.isnan(), result.isnan()) and torch.equal(
                spoiled.nan_to_num(), result.nan_to_num()
            )
            assert exact.accepts(spoiled) == same


def test_complex_results_are_compared_in_both_parts() -> None:
    golden = torch.complex(GOLDEN, GOLDEN.flip(0))
    exact = Rule("T2", golden, golden.to(torch.complex64))
    assert exact.accepts(golden.to(torch.complex64))
    real_only = torch.complex(GOLDEN, torch.zeros_like(GOLDEN)).to(torch.complex64)
    refused = exact.errors(real_only)
    assert refused.bad.shape == (64, 64)
    assert refused.bad.float().mean() > 0.9


def test_a_scalar_and_an_empty_tensor_have_rules_too() -> None:
    loss = torch.tensor(2.5, dtype=torch.float64)
    assert rule("T1", torch.bfloat16, loss).accepts(loss.bfloat16())
    assert not rule("T1", torch.bfloat16, loss).accepts((2 * loss).bfloat16())
    empty = torch.zeros(0, 4, dtype=torch.float64)
    assert rule("T1", torch.bfloat16, empty).accepts(empty.bfloat16())


def test_a_reference_that_overflows_does_not_widen_the_limit() -> None:
    reference = GOLDEN.bfloat16()
    reference[0, 0] = math.inf
    exact = Rule("T1", GOLDEN, reference)
    assert not exact.accepts(reference)
    assert exact.accepts(GOLDEN.bfloat16())


def test_golden_and_reference_must_have_one_shape() -> None:
    with pytest.raises(InvalidProblem, match=r"\[64, 64\].*\[64\]"):
        Rule("T1", GOLDEN, GOLDEN[0])


@pytest.mark.parametrize("slug", [problem.slug for problem in catalogue()])
def test_every_element_counts(slug: str) -> None:
    """One wrong element of one rank is enough."""
    call = materialized(slug, 2)
    checker = Checker(get(slug), call.golden, call.reference)
    for rank in range(2):
        results = copied(call.reference)
        for tensor in results[rank].values():
            tensor.view(-1)[-1] += 1
        assert not checker.accepts(results)


def test_a_small_tensor_s_largest_error_is_not_left_to_chance() -> None:
    """The reference errs alike everywhere: its largest error says less than its rms."""
    golden = torch.ones(64).double()
    alike = Rule("T1", golden, (golden + 2.0**-6).bfloat16())
    assert (alike.set_by, alike.limit) == ("rms error", 16 * 2.0**-6)
    one_off = golden.clone()
    one_off[0] += 2.0**-3
    lucky = Rule("T1", golden, one_off.bfloat16())
    assert (lucky.set_by, lucky.limit) == ("largest error", 2 * 2.0**-3)
    exact = Rule("T1", golden, golden.bfloat16())
    assert (exact.set_by, exact.limit) == ("roundoff", 4 * 2.0**-8)
    assert rule("T2", torch.float32).set_by == "value"
    assert Rule("T0", golden, golden).set_by == "bits"


@pytest.mark.parametrize("tolerance", ["T1", "T2", "T3"])
def test_shares_are_of_the_limits(tolerance: Tolerance) -> None:
    dtype = {"T1": torch.bfloat16, "T2": torch.float32, "T3": torch.float64}[tolerance]
    golden = GOLDEN / 3
    judged = rule(tolerance, dtype, golden)
    largest, rms = judged.shares(golden.to(dtype))
    assert (0 < largest < 1) == (tolerance != "T3")
    assert (0 < rms < 1) == (tolerance == "T1")
    wrong = golden.to(dtype, copy=True)
    wrong[3, 4] += 1
    assert judged.shares(wrong)[0] > 1
    assert not judged.accepts(wrong)
    wrong[3, 4] = math.nan
    assert judged.shares(wrong)[0] == math.inf
    values = torch.arange(4)
    assert Rule("T0", values, values).shares(values) == (0.0, 0.0)
    assert Rule("T0", values, values).shares(values + 1) == (math.inf, 0.0)


@pytest.mark.parametrize("tolerance", ["T1", "T2"])
@pytest.mark.parametrize("k", [-20, 0, 20])
def test_another_result_is_alike_by_its_own_size(tolerance: Tolerance, k: int) -> None:
    """The result of a call with inputs of another scale, computed twice, or zeros instead."""
    dtype = torch.bfloat16 if tolerance == "T1" else torch.float32
    judged = rule(tolerance, dtype)
    other = GOLDEN.flip(0) * 2.0**k
    once, again = other.to(dtype), (other * (1 + 2.0**-26)).to(dtype)
    assert judged.alike(once, again).all()
    assert judged.alike(again, other.to(dtype)).all()
    zeros = torch.zeros_like(once)
    assert judged.alike(zeros, zeros).all()
    assert float(judged.alike(once, zeros).float().mean()) < 0.1
    assert float(judged.alike(once, once.flip(1)).float().mean()) < 0.1
