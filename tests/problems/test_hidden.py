"""Hidden shapes: drawn from the seed alone, within what a problem's check shapes promise."""

import dataclasses
import math
from typing import Any

import pytest

from problems.contract import HIDDEN, Dims, Problem, bench, check
from problems.description import MAX_SHAPES, Description, describe
from problems.errors import ProblemError
from problems.hidden import hidden_shapes, with_hidden, within_the_stated
from problems.hosting import InProcessHost
from problems.lint.controls import lint
from problems.loading import load_problem
from problems.registry import catalogue, get
from tests.problems.samples import Sample, all_reduced, example_file

SLUGS = [problem.slug for problem in catalogue()]
WORLDS = (2, 4, 8)


def drawn(problem: Problem, seeds: int, world_size: int = 4) -> list[Dims]:
    """The sizes of all hidden shapes of the first seeds."""
    found = [hidden_shapes(problem, seed, world_size) for seed in range(seeds)]
    return [shape.dims for shapes in found for shape in shapes]


def nbytes(problem: Problem, dims: Dims) -> int:
    specs = [*problem.input_specs(dims, 4).values(), *problem.output_specs(dims, 4).values()]
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)


@pytest.mark.parametrize("slug", SLUGS)
def test_they_lie_within_what_the_check_shapes_promise(slug: str) -> None:
    problem = get(slug)
    stated = [shape.dims for shape in problem.shapes]
    checks = [shape.dims for shape in problem.shapes if shape.kind == "check"]
    sizes = {letter: [dims[letter] for dims in checks] for letter in checks[0]}
    second, largest = sorted(nbytes(problem, dims) for dims in checks)[-2:]
    for seed in range(20):
        small, large = hidden_shapes(problem, seed, 4)
        assert (small.name, large.name) == HIDDEN
        assert nbytes(problem, small.dims) <= 2 * second
        assert nbytes(problem, large.dims) <= largest
        for shape in (small, large):
            assert shape.kind == "check"
            assert shape.dims not in stated
            assert any(size % 8 for size in shape.dims.values())
            for letter, size in shape.dims.items():
                assert min(sizes[letter]) <= size <= max(sizes[letter])
                assert size % math.gcd(*sizes[letter]) == 0


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("slug", SLUGS)
def test_they_divide_among_the_ranks(slug: str, world_size: int) -> None:
    problem = get(slug)
    for dims in drawn(problem, 5, world_size):
        assert problem.divides(dims, world_size)
    named = {s.name for s in describe(with_hidden(problem, 3, world_size), world_size).shapes}
    assert set(HIDDEN) <= named


def test_a_seed_says_which_and_every_seed_says_others() -> None:
    problem = get("gemm_reducescatter")
    assert hidden_shapes(problem, 7, 4) == hidden_shapes(problem, 7, 4)
    large = [tuple(hidden_shapes(problem, seed, 4)[1].dims.values()) for seed in range(50)]
    assert len(set(large)) == 50


def test_the_problem_itself_stays_as_it_is() -> None:
    problem = get("allreduce")
    before = problem.shapes
    wider = with_hidden(problem, 1, 4)
    assert problem.shapes is before
    assert wider.shapes[: len(before)] == before
    assert type(wider) is type(problem)


def test_a_host_knows_them_by_name() -> None:
    plain = InProcessHost(get("alltoall"))
    host = plain.with_hidden(5, 4)
    for world_size in (2, 4):
        description = host.describe(world_size)
        shapes = {shape.name: shape for shape in description.shapes}
        assert set(HIDDEN) <= set(shapes)
        assert within_the_stated(description)
        made = host.materialize("hidden_1", world_size, 9)
        assert made.inputs[0]["x"].shape == shapes["hidden_1"].inputs["x"].shape
        assert "local" in host.defective("hidden_1", world_size, 9)
    with pytest.raises(ProblemError, match="has no shape 'hidden_1'"):
        plain.materialize("hidden_1", 4, 9)


class Square(Sample):
    """Defined on square tensors only; its reference fails on others."""

    shapes = (check("tiny", M=16, N=16), check("odd", M=13, N=13), bench(M=1024, N=1024))

    def __init__(self) -> None:
        super().__init__(lambda group, x: all_reduced(group, x) + 0 * x.t())


class Admitting(Square):
    def admits(self, dims: Dims) -> bool:
        return dims["M"] == dims["N"]


def test_the_lint_hears_of_sizes_that_the_operator_does_not_take() -> None:
    report = lint(Square(), world_sizes=(2,), seeds=(1,))
    assert {finding.shape for finding in report.findings} <= set(HIDDEN)
    message = next(f.message for f in report.findings if f.check == "runs")
    assert "must match the size" in message
    assert "This is at M=" in message
    assert "say in `admits`" in message


def test_admits_keeps_sizes_together() -> None:
    problem = Admitting()
    for dims in drawn(problem, 20):
        assert dims["M"] == dims["N"]
    report = lint(problem, world_sizes=(2,), seeds=(1,))
    assert report.ok, report.findings


class _Refusing(Sample):
    def admits(self, dims: Dims) -> bool:
        return dims["M"] != 5


class _Stubborn(Sample):
    def admits(self, dims: Dims) -> bool:
        return dims in [shape.dims for shape in self.shapes]


class _Raising(Sample):
    def admits(self, dims: Dims) -> bool:
        return dims["M"] in (5, 8, 1024) or dims["H"] > 0


class _Narrow(Sample):
    def costs(self, dims: Dims, world_size: int) -> Any:
        good = super().costs(dims, world_size)
        stated = dims in [shape.dims for shape in Sample.shapes]
        return good if stated else dataclasses.replace(good, flops=math.nan)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (_Refusing(), "`admits` refuses shape 'odd'"),
        (_Stubborn(), "No check shapes can be drawn besides the stated ones"),
        (_Raising(), "It failed: KeyError: 'H'"),
        (_Narrow(), "of shape 'hidden_1' at 2 ranks must be finite"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_lint_says_of_them(problem: Problem, words: str) -> None:
    report = lint(problem, world_sizes=(2,), seeds=(1,))
    assert not report.ok
    assert any(words in finding.message for finding in report.findings), report.findings


def test_no_room_means_none() -> None:
    class Fixed(Sample):
        shapes = (check("tiny", M=5, N=8), bench(M=1024, N=1024))

    assert hidden_shapes(Fixed(), 1, 4) == ()

    class Nowhere(Sample):
        sharded = ("M",)

    assert hidden_shapes(Nowhere(), 1, 16) == ()


def test_their_names_are_taken(tmp_path: Any) -> None:
    file = example_file(tmp_path)
    text = file.read_text(encoding="utf-8").replace('check("odd"', 'check("hidden_1"')
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ProblemError, match="'hidden_1' is taken by the judge's own"):
        load_problem(file)


def changed(description: Description, **sizes: Any) -> Description:
    """The description with another first hidden shape."""
    shapes = tuple(
        dataclasses.replace(shape, **sizes) if shape.name == "hidden_1" else shape
        for shape in description.shapes
    )
    return dataclasses.replace(description, shapes=shapes)


@pytest.mark.parametrize(
    "sizes", [{"dims": {"M": 4096, "N": 64}}, {"dims": {"M": 8, "N": 64}}, {"dims": {"M": 64}},
              {"kind": "bench"}],
)  # fmt: skip
def test_nothing_else_comes_under_their_names(sizes: dict[str, Any]) -> None:
    description = describe(with_hidden(get("allreduce"), 1, 4), 4)
    assert within_the_stated(description)
    assert not within_the_stated(changed(description, **sizes))


def test_as_many_as_may_be_stated_still_leave_room_for_them() -> None:
    class Many(Sample):
        shapes = (
            *Sample.shapes[:2],
            *(bench(M=1024, N=8 * (n + 1)) for n in range(MAX_SHAPES - 2)),
        )

    description = describe(with_hidden(Many(), 1, 4), 4)
    assert len(description.shapes) == MAX_SHAPES + 2
    assert Description.from_json(description.to_json()) == description
