"""The task lint: a problem is admitted only if every trivial candidate fails its check.

A candidate that does no work or no communication must be wrong at every check shape and world
size, or "correct" says nothing about a kernel. The candidates are made from the problem itself:
constants, its inputs, and its reference with communication removed.
"""

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from problems.compare import Checker, changed_inputs, input_digests
from problems.contract import Problem, Shape, Tensors
from problems.defects import Defect, fit
from problems.errors import ProblemError, blamed
from problems.exact import golden_of
from problems.fields import Fields
from problems.hidden import about, with_examples
from problems.ranks import Run, run
from problems.tolerance import UNIT_ROUNDOFF
from problems.validation import breaches

WORLD_SIZES = (2, 4)
SEEDS = (1, 2)
# What one missing rank changes must stand out of honest rounding, and the signal out of the limit.
MIN_GAP = 10.0
# The reference's own rms error, relative to the result.
MAX_NOISE = 0.02
MIN_SIGNAL = 10.0
FEW = 16
MAX_FINDINGS = 500
MAX_RATIO = 1e30  # what a report may hold; a reference without any error gives more
MAX_MESSAGE = 4000


@dataclass(frozen=True)
class LintFinding:
    """Why a problem is refused: the check that failed, where, and what to change."""

    check: str
    message: str
    shape: str | None = None
    world_size: int | None = None


@dataclass(frozen=True)
class LintReport:
    """The lint's result: `checks` were made, `findings` failed.

    `gap` is the least ratio of a missing rank's error to the reference's own (infinite for exact
    problems), `signal` the least ratio of the outputs' rms to the tolerance.
    """

    ok: bool
    checks: int
    findings: tuple[LintFinding, ...]
    gap: float
    signal: float

    def to_json(self) -> dict[str, Any]:
        """The report as JSON; an infinite ratio is null."""
        return {
            "ok": self.ok,
            "checks": self.checks,
            "findings": [asdict(finding) for finding in self.findings],
            "gap": min(self.gap, MAX_RATIO) if math.isfinite(self.gap) else None,
            "signal": min(self.signal, MAX_RATIO) if math.isfinite(self.signal) else None,
        }

    @classmethod
    def from_json(cls, data: object) -> "LintReport":
        """Read what `to_json` wrote. Raises WireError, which names the field that is wrong."""
        fields = Fields(data, "lint report")
        findings = [Fields(item, "findings") for item in fields.items("findings", MAX_FINDINGS)]
        return cls(
            ok=fields.value("ok", bool) and not findings,
            checks=fields.integer("checks"),
            findings=tuple(
                LintFinding(
                    check=finding.text("check", 200),
                    message=finding.text("message", MAX_MESSAGE),
                    shape=finding.optional("shape", finding.name),
                    world_size=finding.optional("world_size", finding.integer),
                )
                for finding in findings
            ),
            gap=fields.optional("gap", fields.cost) or math.inf,
            signal=fields.optional("signal", fields.cost) or math.inf,
        )


def lint(
    problem: Problem,
    *,
    world_sizes: Sequence[int] = WORLD_SIZES,
    seeds: Sequence[int] = SEEDS,
    shapes: Sequence[str] | None = None,
) -> LintReport:
    """Check that a problem keeps the contract and that no trivial candidate passes it.

    By default at every check shape, and at two drawn as the judge draws hidden ones. Errors of the
    problem's own code are findings, too.
    """
    tally = _Tally()
    found = breaches(problem)
    if not found:
        problem, found = with_examples(problem)
    for breach in found:
        tally.fail("contract", breach)
    if tally.findings:
        return tally.report()
    chosen = [s for s in problem.shapes if s.kind == "check" and (not shapes or s.name in shapes)]
    for shape, world_size, seed in itertools.product(chosen, world_sizes, seeds):
        tally.at(shape, world_size)
        try:
            _Case(problem, shape, world_size, seed, tally).examine()
        except Exception as error:  # noqa: BLE001 - the problem's own code may raise anything
            tally.fail("runs", str(blamed(error, inspect.getfile(type(problem)), "It failed")))
    return tally.report()


class _Tally:
    """Counts checks and keeps each distinct finding once per shape and world size."""

    def __init__(self) -> None:
        self.checks = 0
        self.findings: dict[tuple[str, str | None, int | None], LintFinding] = {}
        self.gap = math.inf
        self.signal = math.inf
        self._shape: str | None = None
        self._world_size: int | None = None
        self._about_shape = ""

    def at(self, shape: Shape, world_size: int) -> None:
        self._shape, self._world_size = shape.name, world_size
        self._about_shape = about(shape)

    def check(self, name: str, ok: bool, message: str) -> None:
        self.checks += 1
        if not ok:
            self.fail(name, message)

    def fail(self, name: str, message: str) -> None:
        key = (name if name != "contract" else message, self._shape, self._world_size)
        if len(self.findings) < MAX_FINDINGS:
            text = message[: MAX_MESSAGE - len(self._about_shape)] + self._about_shape
            finding = LintFinding(name, text, self._shape, self._world_size)
            self.findings.setdefault(key, finding)

    def report(self) -> LintReport:
        found = tuple(self.findings.values())
        return LintReport(not found, self.checks, found, self.gap, self.signal)


class _Case:
    """One shape, world size and seed."""

    def __init__(
        self, problem: Problem, shape: Shape, world_size: int, seed: int, tally: _Tally
    ) -> None:
        self.problem = problem
        self.shape = shape
        self.world_size = world_size
        self.seed = seed
        self.tally = tally
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

    def _defective(self, defect: Defect) -> list[Tensors] | None:
        """The outputs under a defect; None if the reference cannot finish with it."""
        try:
            return self._run(self.inputs, defect).outputs
        except ProblemError:
            return None

    def _draw(self, seed: int) -> list[Tensors]:
        dims = self.shape.dims
        return [
            self.problem.make_inputs(rank, self.world_size, seed, dims)
            for rank in range(self.world_size)
        ]

    def _run(
        self, inputs: Sequence[Tensors], defect: Defect | None = None, *, copy: bool = True
    ) -> Run:
        if copy and self.problem.mutates:
            inputs = [{name: tensor.clone() for name, tensor in rank.items()} for rank in inputs]
        return run(self.problem, inputs, defect=defect)


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
