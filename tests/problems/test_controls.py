"""The task lint: the catalogue is admitted, and every way to be a bad problem is refused."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from problems.contract import Dims, OutputSpec, Problem, Tensors
from problems.errors import WireError
from problems.lint.controls import lint
from problems.lint.report import LintReport
from problems.reference.ranks import run_ranks
from problems.registry import catalogue, get
from tests.problems.samples import Sample, all_reduced

SLUGS = [problem.slug for problem in catalogue()]


@pytest.mark.parametrize("slug", SLUGS)
def test_the_catalogue_is_admitted(slug: str) -> None:
    report = lint(get(slug), shapes=["tiny", "odd"])
    assert report.ok, report.findings
    assert report.checks > 150
    assert report.gap >= 10
    assert report.signal >= 10


@pytest.mark.slow
@pytest.mark.parametrize("slug", SLUGS)
def test_the_catalogue_is_admitted_at_the_default_size(slug: str) -> None:
    report = lint(get(slug), shapes=["default"])
    assert report.ok, report.findings


def failed(problem: Problem) -> dict[str, str]:
    """The checks that refuse a problem, with their messages."""
    report = lint(problem, world_sizes=(2,), seeds=(1,))
    assert not report.ok
    return {finding.check: finding.message for finding in report.findings}


def test_a_right_sample_is_admitted() -> None:
    assert lint(Sample()).ok


def test_a_problem_without_communication() -> None:
    class Local(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            return [{"y": 2 * rank["x"].double()} for rank in inputs]

    found = failed(Local(lambda group, x: 2 * x))
    assert "communication is not needed" in found["local"]
    assert "without_rank_0" in found


def test_a_problem_whose_result_is_its_input() -> None:
    class Identity(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            return [{"y": rank["x"].double()} for rank in inputs]

    assert "input:x" in failed(Identity(lambda group, x: x.clone()))


def test_a_problem_with_a_predictable_result() -> None:
    def ones(group: Any, x: Tensor) -> Tensor:
        return torch.ones_like(all_reduced(group, x))

    class Constant(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            return [{"y": torch.ones(rank["x"].shape).double()} for rank in inputs]

    found = failed(Constant(ones))
    assert {"ones", "mean", "previous", "local", "signal:y", "gap_rank_0"} <= set(found)


def test_a_problem_with_a_zero_result() -> None:
    class Zero(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            return [{"y": torch.zeros(rank["x"].shape).double()} for rank in inputs]

    assert "zeros" in failed(Zero(lambda group, x: 0 * all_reduced(group, x)))


def test_a_golden_that_disagrees_with_the_reference() -> None:
    class Disagreeing(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            return [{"y": inputs[0]["x"].double()} for _ in inputs]

    message = failed(Disagreeing())["reference"]
    assert "Reference and golden disagree" in message


def test_inputs_that_are_equal_on_all_ranks() -> None:
    class Equal(Sample):
        def make_inputs(self, rank: int, world_size: int, seed: int, dims: Dims) -> Tensors:
            return super().make_inputs(0, world_size, seed, dims)

    found = failed(Equal())
    assert "equal on two ranks" in found["ranks:x"]
    assert "local_times_W" in found


def test_inputs_that_are_not_reproducible() -> None:
    class Loose(Sample):
        def make_inputs(self, rank: int, world_size: int, seed: int, dims: Dims) -> Tensors:
            return {"x": torch.randn(dims["M"], dims["N"]).bfloat16()}

    assert "self.generator" in failed(Loose())["deterministic"]


def test_inputs_that_ignore_the_seed() -> None:
    class Frozen(Sample):
        def make_inputs(self, rank: int, world_size: int, seed: int, dims: Dims) -> Tensors:
            return super().make_inputs(rank, world_size, 0, dims)

    assert "ignores the seed" in failed(Frozen())["previous"]


def test_a_reference_that_overwrites_its_input() -> None:
    def in_place(group: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=group)
        return x

    assert "overwrites ['x']" in failed(Sample(in_place))["unchanged"]

    class Declared(Sample):
        mutates = frozenset({"x"})

    assert lint(Declared(in_place)).ok


class WithUnused(Sample):
    """A second input that changes nothing."""

    input_names = ("x", "unused")

    def input_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
        spec = self.spec(dims["M"], dims["N"])
        return {"x": spec, "unused": spec}

    def reference(self, group: dist.ProcessGroup, x: Tensor, unused: Tensor) -> Tensors:
        return super().reference(group, x=x)


def test_an_input_without_influence() -> None:
    assert "no influence" in failed(WithUnused())["without_input:unused"]


def test_a_collective_without_influence() -> None:
    def twice(group: Any, x: Tensor) -> Tensor:
        all_reduced(group, x)
        return all_reduced(group, x)

    found = failed(Sample(twice))
    assert "all_reduce is not needed" in found["without_collective_0"]
    assert "without_collective_1" not in found


def test_a_reference_that_raises_or_disagrees_about_the_form() -> None:
    def broken(group: Any, x: Tensor) -> Tensor:
        raise RuntimeError("no such thing")

    message = failed(Sample(broken))["runs"]
    assert "samples.py:" in message
    assert "RuntimeError: no such thing" in message

    class Wide(Sample):
        def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
            return {"y": self.spec(dims["M"], 2 * dims["N"])}

    assert "output_specs says" in failed(Wide())["form:y"]


BAD_GOLDENS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda inputs: None, "one entry for each of 2 ranks"),
    (lambda inputs: [{"z": inputs[0]["x"]}] * 2, "must give y for every rank"),
    (lambda inputs: [{"y": 1.0}] * 2, "is float"),
    (lambda inputs: [{"y": inputs[0]["x"]}] * 2, r"Use .double\(\)"),
    (lambda inputs: [{"y": inputs[0]["x"][0].double()}] * 2, "golden has shape"),
    (lambda inputs: 1 / 0, "ZeroDivisionError"),
]


@pytest.mark.parametrize(("golden", "message"), BAD_GOLDENS)
def test_a_golden_of_the_wrong_form(golden: Callable[[Any], Any], message: str) -> None:
    class Bad(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            made: list[Tensors] = golden(inputs)
            return made

    with pytest.raises(AssertionError, match=message):
        raise AssertionError(failed(Bad())["runs"])


def test_a_breach_of_the_contract_is_reported_before_anything_runs() -> None:
    class Nameless(Sample):
        slug = "Not A Slug"

    assert "lower-case identifier" in failed(Nameless())["contract"]


def test_one_number_need_not_vary() -> None:
    class Loss(Sample):
        def output_specs(self, dims: Dims, world_size: int) -> dict[str, OutputSpec]:
            return {"y": OutputSpec((), torch.bfloat16)}

        def golden(self, inputs: Any) -> list[Tensors]:
            total = torch.stack([rank["x"].double() for rank in inputs]).sum(0)
            return [{"y": total.square().sum().sqrt()} for _ in inputs]

    def norm(group: Any, x: Tensor) -> Tensor:
        return all_reduced(group, x.float()).square().sum().sqrt().bfloat16()

    found = failed(Loss(norm))
    assert "signal:y" not in found
    # The norm of normal numbers hardly varies: that is what makes such a problem a bad one.
    assert "mean" in found


def at_the_ends(problem: Problem) -> dict[str, str]:
    """The checks that refuse a problem, none at scale 1."""
    found = failed(problem)
    assert all("with inputs times 2^" in message for message in found.values()), found
    return found


def test_a_problem_that_means_something_at_one_scale_must_say_so() -> None:
    def exponential(group: Any, x: Tensor) -> Tensor:
        return (all_reduced(group, x).float() / 2).exp().to(x.dtype)

    class Exponential(Sample):
        def golden(self, inputs: Any) -> list[Tensors]:
            return [{"y": (rank["y"] / 2).exp()} for rank in super().golden(inputs)]

    found = at_the_ends(Exponential(exponential))
    assert "times 2^-10: if the problem means nothing there, state" in found["signal:y"]
    assert "times 2^10" in found["finite:y"]

    class Stated(Exponential):
        scales = (0, 0)

    assert lint(Stated(exponential), world_sizes=(2,), seeds=(1,)).ok


def test_fp16_sums_stay_in_range_unless_the_problem_goes_too_far() -> None:
    class Half(Sample):
        dtype = torch.float16

    assert lint(Half()).ok

    class TooFar(Half):
        scales = (0, 16)

    assert "times 2^16" in at_the_ends(TooFar())["reference"]


def test_honest_variants_are_heard() -> None:
    report = lint(Sample())
    assert set(report.noise) == {"rounded", "ring", "reversed", "rotated", "fp32"}
    assert all(0 < noise.max < 1 and 0 < noise.rms < 1 for noise in report.noise.values())
    assert report.noise["fp32"].rms < report.noise["ring"].rms
    assert lint(get("alltoall"), shapes=["tiny"]).noise == {}
    assert set(lint(get("gemm_allgather"), shapes=["tiny"]).noise) == {"rounded", "ring"}


def test_a_tolerance_that_refuses_an_honest_kernel() -> None:
    class AsTheRing(Sample):
        """Its golden rounds as the reference does, so that nobody else is right."""

        def golden(self, inputs: Any) -> list[Tensors]:
            made = run_ranks(Sample(), inputs)
            return [{"y": rank["y"].double()} for rank in made]

    report = lint(AsTheRing(), world_sizes=(4,), seeds=(1,))
    checks = {finding.check for finding in report.findings}
    assert checks == {"noise:reversed", "noise:rotated", "noise:fp32"}
    assert "refuses an honest kernel" in report.findings[0].message


def test_a_problem_that_mutates_is_heard_with_its_own_inputs() -> None:
    def in_place(group: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x, group=group)
        return x

    class Declared(Sample):
        mutates = frozenset({"x"})

    heard, same = lint(Declared(in_place)), lint(Sample())
    assert heard.noise == same.noise


def test_a_report_survives_json() -> None:
    for report in (lint(get("allgather"), shapes=["tiny"]), lint(WithUnused(), seeds=(1,)),
                   lint(Sample(), seeds=(1,))):  # fmt: skip
        text = json.dumps(report.to_json(), allow_nan=False)
        assert LintReport.from_json(json.loads(text)) == report
    assert lint(get("allgather"), shapes=["tiny"]).gap == math.inf


@pytest.mark.parametrize(
    "change",
    [
        {"ok": "yes"},
        {"checks": -1},
        {"findings": [{"check": 3}]},
        {"findings": {}},
        {"noise": []},
        {"noise": {"ring": {"max": 1}}},
        {"noise": {str(n): {"max": 0, "rms": 0} for n in range(17)}},
    ],
)
def test_a_malformed_report_is_refused(change: dict[str, Any]) -> None:
    data = {**LintReport(True, 3, (), 20.0, 20.0).to_json(), **change}
    with pytest.raises(WireError, match=next(iter(change)) if "findings" not in change else "f"):
        LintReport.from_json(data)


def test_a_report_with_findings_is_never_ok() -> None:
    data = LintReport(True, 3, (), 20.0, 20.0).to_json()
    data["findings"] = [{"check": "zeros", "message": "passes"}]
    assert not LintReport.from_json(data).ok
