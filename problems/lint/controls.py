"""The task lint: a problem is admitted only if every trivial candidate fails its check.

A candidate that does no work or no communication must be wrong at every check shape and world
size, or "correct" says nothing about a kernel. The candidates are made from the problem itself:
constants, its inputs, and its reference with communication removed.
"""

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from problems.answers.compare import Checker, changed_inputs, input_digests
from problems.answers.exact import golden_of
from problems.answers.tolerance import UNIT_ROUNDOFF
from problems.contract import Problem, Shape, Tensors
from problems.errors import ProblemError, blamed
from problems.hidden import about, with_examples
from problems.lint.noise import honest_variants, noise_of
from problems.lint.report import LintReport, Tally
from problems.lint.validation import breaches
from problems.reference.defects import Defect, fit
from problems.reference.ranks import Run, run
from problems.reference.variants import RING, Variant
from problems.scales import scaled, span_of, told

WORLD_SIZES = (2, 4)
SEEDS = (1, 2)
# What one missing rank changes must stand out of honest rounding, and the signal out of the limit.
MIN_GAP = 10.0
# The reference's own rms error, relative to the result.
MAX_NOISE = 0.02
MIN_SIGNAL = 10.0
FEW = 16
_ADVICE = (
    " This is so with inputs times {scale}: if the problem means nothing there, state the `scales` "
    "at which it does."
)


def lint(
    problem: Problem,
    *,
    world_sizes: Sequence[int] = WORLD_SIZES,
    seeds: Sequence[int] = SEEDS,
    shapes: Sequence[str] | None = None,
) -> LintReport:
    """Check that a problem keeps the contract and that no trivial candidate passes it.

    By default at every check shape and two drawn as the judge draws hidden ones, with inputs as
    they are drawn; once at the smallest shape also with the smallest and the largest inputs. Errors
    of the problem's own code are findings, too.
    """
    tally = Tally()
    found = breaches(problem)
    if not found:
        problem, found = with_examples(problem)
    for breach in found:
        tally.fail("contract", breach)
    if tally.findings:
        return tally.report()
    chosen = [s for s in problem.shapes if s.kind == "check" and (not shapes or s.name in shapes)]
    for shape, world_size, seed in itertools.product(chosen, world_sizes, seeds):
        tally.at(shape.name, world_size, about(shape))
        _examine(problem, shape, world_size, seed, tally)
    if chosen and not tally.findings:
        smallest = min(chosen, key=lambda shape: math.prod(shape.dims.values()))
        for k in sorted(set(span_of(problem, smallest.dims, world_sizes[0])) - {0}):
            tally.at(smallest.name, world_sizes[0], _ADVICE.format(scale=told([k])))
            _examine(problem, smallest, world_sizes[0], seeds[0], tally, k)
    return tally.report()


def _examine(
    problem: Problem, shape: Shape, world_size: int, seed: int, tally: Tally, k: int = 0
) -> None:
    try:
        _Case(problem, shape, world_size, seed, tally, k).examine()
    except Exception as error:  # noqa: BLE001 - the problem's own code may raise anything
        tally.fail("runs", str(blamed(error, inspect.getfile(type(problem)), "It failed")))


class _Case:
    """One shape, world size and seed; inputs are those of the seed times 2^k."""

    def __init__(
        self, problem: Problem, shape: Shape, world_size: int, seed: int, tally: Tally, k: int
    ) -> None:
        self.problem = problem
        self.shape = shape
        self.world_size = world_size
        self.seed = seed
        self.tally = tally
        self.k = k
        self.inputs = self._draw(seed)
        self.others = self._draw(seed + 1)
        self.honest = self._run(self.inputs)
        self.golden = golden_of(problem, self.inputs)
        self.checker = Checker(problem, self.golden, self.honest.outputs)

    def examine(self) -> None:
        """Make every check of this case."""
        self._inputs()
        self._reference()
        self._outputs()
        for name, results, meaning in self._candidates():
            self.tally.check(
                name,
                not self.checker.accepts(results),
                f"The trivial candidate {name!r} passes: {meaning}",
            )
        for rank in self.problem.contributors(self.world_size):
            self._missing_rank(rank)
        if self.problem.tolerance != "T0":
            self._noise()

    def _reference(self) -> None:
        """The limits follow the reference's error, so that itself must come from rounding only."""
        verdict = self.checker.compare(self.honest.outputs)
        error = _rms_error(self.honest.outputs, self.golden)
        size = _rms_error(_filled(self.honest.outputs, lambda t: 0.0), self.golden)
        units = [UNIT_ROUNDOFF.get(t.dtype, 0.0) for t in self.honest.outputs[0].values()]
        near = self.problem.tolerance == "T0" or error <= max(MAX_NOISE, *units) * size
        self.tally.check(
            "reference",
            verdict.ok and near,
            f"Reference and golden disagree: the reference is off by {error:.3g} (rms) where the "
            f"golden is {size:.3g}. {verdict.summary if not verdict.ok else ''}",
        )

    def _inputs(self) -> None:
        again = self._draw(self.seed)
        self.tally.check(
            "deterministic",
            input_digests(again) == input_digests(self.inputs),
            "make_inputs gives other values for the same seed. Draw only from self.generator.",
        )
        for name in self.problem.input_names:
            first = self.inputs[0][name]
            shared = name in self.problem.replicated
            equal = [
                rank[name].shape == first.shape and torch.equal(rank[name], first)
                for rank in self.inputs[1:]
            ]
            self.tally.check(
                f"ranks:{name}",
                all(equal) if shared else not any(equal),
                f"Input {name!r} is declared replicated but differs between ranks."
                if shared
                else f"Input {name!r} is equal on two ranks, so a kernel needs no exchange of it. "
                "Draw it with this rank's generator, or declare it in `replicated`.",
            )
        digests = input_digests(self.inputs)
        self._run(self.inputs, copy=False)
        changed = changed_inputs(digests, self.inputs, self.problem.mutates)
        self.tally.check(
            "unchanged",
            not changed,
            f"The reference overwrites {sorted({name for _, name in changed})}; clone them first, "
            "or declare them in `mutates`.",
        )
        if self.problem.mutates or changed:
            self.inputs = self._draw(self.seed)

    def _outputs(self) -> None:
        specs = self.problem.output_specs(self.shape.dims, self.world_size)
        for name, spec in specs.items():
            for rank, outputs in enumerate(self.honest.outputs):
                tensor, exact = outputs[name], self.golden[rank][name]
                self.tally.check(
                    f"form:{name}",
                    tuple(tensor.shape) == spec.shape and tensor.dtype == spec.dtype,
                    f"Output {name!r} is {tensor.dtype}{list(tensor.shape)} but output_specs says "
                    f"{spec.dtype}{list(spec.shape)}.",
                )
                self.tally.check(
                    f"finite:{name}",
                    bool(exact.isfinite().all()) if exact.dtype.is_floating_point else True,
                    f"The golden of {name!r} has NaN or infinity; scale the inputs.",
                )
                self._signal(rank, name)

    def _signal(self, rank: int, name: str) -> None:
        if self.problem.tolerance != "T1":
            return
        rule = self.checker.rule(rank, name)
        limit = rule.limit if isinstance(rule.limit, float) else float(rule.limit.max())
        # A few numbers, such as a loss, need not differ from each other.
        few = rule.golden.numel() < FEW
        spread = rule.golden.square().mean().sqrt() if few else rule.golden.std()
        signal = float(spread) / limit if limit > 0 else 0.0
        self.tally.signal = min(self.tally.signal, signal)
        self.tally.check(
            f"signal:{name}",
            signal >= MIN_SIGNAL,
            f"Output {name!r} varies by only {signal:.3g} times the tolerance; scale the inputs so "
            "that its values are about 1 and differ.",
        )

    def _candidates(self) -> Iterator[tuple[str, object, str]]:
        """Name, results and meaning of every trivial candidate."""
        honest = self.honest.outputs
        for name in self.problem.output_names:
            absent = [{**outputs, name: None} for outputs in honest]
            yield f"none:{name}", absent, f"an absent {name!r} is skipped."
        yield "zeros", _filled(honest, lambda t: 0.0), "the tolerance swallows the whole result."
        yield "ones", _filled(honest, lambda t: 1.0), "the result is a known constant."
        mean = _filled(honest, _mean)
        yield "mean", mean, "the result hardly varies; its mean is good enough."
        yield from self._copies()
        yield from self._silent()
        previous = self._run(self.others).outputs
        yield "previous", previous, "the output of the call before is right; it ignores the seed."
        yield from self._stale()

    def _copies(self) -> Iterator[tuple[str, object, str]]:
        for name in self.problem.input_names:
            copies = [
                {output: fit(self.inputs[rank][name], like) for output, like in outputs.items()}
                for rank, outputs in enumerate(self.honest.outputs)
            ]
            yield f"input:{name}", copies, f"returning the rank's own {name!r} is good enough."

    def _silent(self) -> Iterator[tuple[str, object, str]]:
        """The reference without communication, at all or in one collective."""
        meaning = "communication is not needed."
        yield "local", self._defective(Defect("local")), meaning
        scaled = Defect("local", scale=float(self.world_size))
        yield "local_times_W", self._defective(scaled), meaning
        calls = [call for call in self.honest.calls if call != "barrier"]
        if len(calls) > 1:
            for number, call in enumerate(calls):
                results = self._defective(Defect("local", only=number))
                yield f"without_collective_{number}", results, f"{call.split()[0]} is not needed."

    def _stale(self) -> Iterator[tuple[str, object, str]]:
        """The reference with one input from another seed."""
        if len(self.problem.input_names) < 2:
            return
        for name in self.problem.input_names:
            mixed = [
                {**mine, name: theirs[name]}
                for mine, theirs in zip(self.inputs, self.others, strict=True)
            ]
            meaning = f"input {name!r} has no influence on the result."
            yield f"without_input:{name}", self._run(mixed).outputs, meaning

    def _missing_rank(self, rank: int) -> None:
        results = self._defective(Defect("without", rank))
        self.tally.check(
            f"without_rank_{rank}",
            not self.checker.accepts(results),
            f"The result without what rank {rank} contributes passes.",
        )
        if results is None or self.problem.tolerance == "T0":
            return
        noise = max(_rms_error(self.honest.outputs, self.golden), 1e-300)
        gap = _rms_error(results, self.golden) / noise
        self.tally.gap = min(self.tally.gap, gap)
        self.tally.check(
            f"gap_rank_{rank}",
            gap >= MIN_GAP,
            f"Without rank {rank} the error is only {gap:.3g} times the reference's rounding; "
            f"{MIN_GAP:g} are needed to tell them apart.",
        )

    def _noise(self) -> None:
        """The limits must bear whatever an honest kernel may do about rounding."""
        made = honest_variants(
            self.golden, self.honest, lambda variant: self._run(self.inputs, variant=variant)
        )
        for name, results in made:
            noise = noise_of(self.checker, results)
            self.tally.hear(name, noise)
            self.tally.check(
                f"noise:{name}",
                noise.max <= 1 and noise.rms <= 1,
                f"The tolerance refuses an honest kernel ({name!r}): its largest error is "
                f"{noise.max:.3g} of the limit, its rms error {noise.rms:.3g}. The golden must be "
                "exact, not rounded as the reference is, and the result must not hang on the last "
                "bit of a sum.",
            )

    def _defective(self, defect: Defect) -> list[Tensors] | None:
        """The outputs under a defect; None if the reference cannot finish with it."""
        try:
            return self._run(self.inputs, defect).outputs
        except ProblemError:
            return None

    def _draw(self, seed: int) -> list[Tensors]:
        dims = self.shape.dims
        return [
            scaled(self.problem.make_inputs(rank, self.world_size, seed, dims), self.k)
            for rank in range(self.world_size)
        ]

    def _run(
        self,
        inputs: Sequence[Tensors],
        defect: Defect | None = None,
        *,
        variant: Variant = RING,
        copy: bool = True,
    ) -> Run:
        if copy and self.problem.mutates:
            inputs = [{name: tensor.clone() for name, tensor in rank.items()} for rank in inputs]
        return run(self.problem, inputs, defect=defect, variant=variant)


def _filled(outputs: Sequence[Tensors], value: Any) -> list[Tensors]:
    return [
        {name: torch.full_like(tensor, value(tensor)) for name, tensor in rank.items()}
        for rank in outputs
    ]


def _mean(tensor: torch.Tensor) -> Any:
    wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
    return tensor.to(wide).mean().item()


def _rms_error(outputs: Sequence[Tensors], golden: Sequence[Mapping[str, torch.Tensor]]) -> float:
    """Rms error over all ranks and outputs; infinite if something is not finite."""
    total, count = 0.0, 0
    for mine, exact in zip(outputs, golden, strict=True):
        for name, tensor in mine.items():
            total += float((tensor.to(exact[name].dtype) - exact[name]).abs().square().sum())
            count += tensor.numel()
    return math.sqrt(total / count) if math.isfinite(total) and count else math.inf
