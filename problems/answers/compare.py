"""Compare what a candidate returned with the golden: structure first, then values, then why.

Results are not trusted to have any form. Anything that cannot be compared is a failure; nothing is
skipped, cast or cut short.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from problems.answers.findings import Comparison, Finding, FindingKind, Measured, summarize
from problems.answers.locate import locate
from problems.answers.tolerance import Errors, Rule
from problems.answers.wrong_answers import WrongAnswer, match
from problems.contract import Tensors, Tolerance

Bank = Callable[[], Sequence[WrongAnswer]]

SCALE_SHARE = 0.99


class Checked(Protocol):
    """What a comparison needs to know of a problem; `Problem` and `Description` both have it."""

    @property
    def tolerance(self) -> Tolerance: ...
    @property
    def output_names(self) -> tuple[str, ...]: ...
    @property
    def peer_dims(self) -> Mapping[str, int]: ...


class Checker:
    """Judges any number of results of one call; limits are computed once.

    `golden` and `reference` have one entry per rank: the exact result and what PyTorch returns.
    Where only some ranks' results are at hand, `world_size` says of how many ranks they are.
    """

    def __init__(
        self,
        problem: Checked,
        golden: Sequence[Tensors],
        reference: Sequence[Tensors],
        *,
        world_size: int | None = None,
    ) -> None:
        self._problem = problem
        self._world = world_size or len(reference)
        self._rules = [
            {
                name: Rule(problem.tolerance, golden[rank][name], reference[rank][name])
                for name in problem.output_names
            }
            for rank in range(len(reference))
        ]

    def rule(self, rank: int, output: str) -> Rule:
        """The rule of one output of one rank."""
        return self._rules[rank][output]

    def accepts(self, results: object) -> bool:
        """Whether every output of every rank is right; stops at the first that is not."""
        if self._form(results):
            return False
        assert isinstance(results, Sequence)
        return all(
            rule.accepts(results[rank][name])
            for rank, rules in enumerate(self._rules)
            for name, rule in rules.items()
        )

    def compare(self, results: object, bank: Bank | None = None) -> Comparison:
        """Judge `results`: one mapping from output name to tensor per rank.

        `bank` makes the known wrong answers; it is called only if a value is wrong.
        """
        findings = self._form(results)
        measured: dict[str, Measured] = {}
        malformed = {(finding.rank, finding.output) for finding in findings}
        answers: Sequence[WrongAnswer] | None = None
        if (None, "") not in malformed:
            assert isinstance(results, Sequence)
            for rank, rules in enumerate(self._rules):
                for name, rule in rules.items():
                    if (rank, name) in malformed or (rank, "") in malformed:
                        continue
                    errors = rule.errors(results[rank][name])
                    _measure(measured, name, errors)
                    if errors.ok:
                        continue
                    if answers is None:
                        answers = bank() if bank is not None else ()
                    findings.append(
                        self._diagnose(rank, name, results[rank][name], errors, answers)
                    )
        summary = summarize(findings, measured, self._world)
        return Comparison(not findings, tuple(findings), measured, summary)

    def _form(self, results: object) -> list[Finding]:
        """Everything wrong with the structure: ranks, names, types, shapes, dtypes."""
        ranks = len(self._rules)
        if not isinstance(results, list | tuple) or len(results) != ranks:
            got = f"{len(results)}" if isinstance(results, list | tuple) else type(results).__name__
            text = f"Expected the outputs of {ranks} ranks, got {got}."
            return [Finding("missing", "", None, text)]
        findings = []
        for rank, outputs in enumerate(results):
            if not isinstance(outputs, Mapping):
                text = f"no outputs: expected a mapping by name, got {type(outputs).__name__}."
                findings.append(Finding("missing", "", rank, text))
                continue
            for name in self._problem.output_names:
                findings += _malformed(rank, name, outputs.get(name), self._rules[rank][name])
            for name in sorted(str(n) for n in outputs if n not in self._problem.output_names):
                findings.append(Finding("missing", name, rank, "no output has that name."))
        return findings

    def _diagnose(
        self,
        rank: int,
        name: str,
        result: Tensor,
        errors: Errors,
        answers: Sequence[WrongAnswer],
    ) -> Finding:
        rule = self._rules[rank][name]
        if not bool(errors.bad.any()):
            return _imprecise(rank, name, errors)
        bad = errors.bad
        region = locate(bad, self._world, self._problem.peer_dims.get(name))
        hit = match(answers, rule, rank, name, result, bad)
        factor = _factor(rule, result)
        kind: FindingKind = region.kind
        if bool((rule.never_finite(result) & bad).any()):
            kind = "nan"
        elif hit is not None and hit.name == "prev_iter_output":
            kind = "stale"
        elif factor is not None:
            kind = "scale"
        index = _first(bad)
        expected, seen = _value(rule.expected()[index]), _value(result[index])
        fraction = float(bad.double().mean())
        parts = [
            f"{100 * fraction:.3g} % of the elements are wrong, {region.text}",
            f"first at {name}[{', '.join(map(str, index))}]: expected {expected:.6g}, "
            f"seen {seen:.6g}",
            *_sizes(errors, rule),
            *_remarks(kind, factor),
        ]
        text = "; ".join(parts) + "."
        owner = region.owners[0] if len(region.owners) == 1 else None
        return Finding(
            kind, name, rank, text, region.text, fraction, index, expected, seen,
            errors.max_error, errors.max_limit, owner, hit,
        )  # fmt: skip


def compare(
    problem: Checked,
    golden: Sequence[Tensors],
    reference: Sequence[Tensors],
    results: object,
    *,
    bank: Bank | None = None,
) -> Comparison:
    """Judge one call's results; see `Checker`."""
    return Checker(problem, golden, reference).compare(results, bank)


def input_digests(inputs: Sequence[Mapping[str, Tensor]]) -> list[dict[str, str]]:
    """A digest of every input of every rank, to be taken before the call."""
    return [{name: _digest(tensor) for name, tensor in rank.items()} for rank in inputs]


def changed_inputs(
    digests: Sequence[Mapping[str, str]],
    inputs: Sequence[Mapping[str, Tensor]],
    mutates: frozenset[str] = frozenset(),
) -> tuple[tuple[int, str], ...]:
    """The (rank, input) pairs whose bits differ from `digests`, save those that may be changed."""
    return tuple(
        (rank, name)
        for rank, (before, now) in enumerate(zip(digests, inputs, strict=True))
        for name in before
        if name not in mutates and (name not in now or _digest(now[name]) != before[name])
    )


def _malformed(rank: int, name: str, value: object, rule: Rule) -> list[Finding]:
    if value is None:
        return [Finding("missing", name, rank, "there is no such output.")]
    if type(value) is not Tensor or value.layout is not torch.strided:
        text = f"expected a dense tensor, got {type(value).__name__}."
        return [Finding("missing", name, rank, text)]
    if value.shape != rule.shape:
        text = f"expected shape {list(rule.shape)}, got {list(value.shape)}."
        return [Finding("shape", name, rank, text)]
    if value.dtype != rule.dtype:
        text = f"expected {rule.dtype}, got {value.dtype}."
        return [Finding("dtype", name, rank, text)]
    return []


def _imprecise(rank: int, name: str, errors: Errors) -> Finding:
    text = (
        f"no single element is far off, but the rms error {errors.rms_error:.3g} is over its limit "
        f"{errors.rms_limit or 0:.3g}: the kernel rounds more often than the reference. Accumulate "
        "in fp32 and round once at the end."
    )
    return Finding(
        "precision", name, rank, text, fraction_bad=0.0,
        max_abs=errors.max_error, limit=errors.max_limit,
    )  # fmt: skip


def _sizes(errors: Errors, rule: Rule) -> list[str]:
    """How wrong it is, in words."""
    if rule.tolerance == "T0":
        return ["the result must be bit-exact"]
    if not math.isfinite(errors.max_error):
        return []
    return [f"largest error {errors.max_error:.3g}, limit {errors.max_limit:.3g}"]


def _remarks(kind: FindingKind, factor: float | None) -> list[str]:
    """What a kind of mistake says by itself."""
    if kind == "nan":
        return [
            "NaN or infinite: outputs start as NaN, so these elements were never written, or they "
            "were computed from something that was not"
        ]
    if kind == "scale" and factor is not None:
        return [f"every element is {factor:.3g} times what it should be"]
    if kind == "scattered":
        return ["no region stands out: look for a race, or for too many roundings"]
    return []


def _factor(rule: Rule, result: Tensor) -> float | None:
    """The constant by which a whole result is off, if there is one."""
    if rule.tolerance == "T0":
        return None
    golden, found = rule.golden.reshape(-1), _flat(result)
    if not bool(found.isfinite().all()) or not bool(golden.isfinite().all()):
        return None
    energy = float(golden @ golden)
    factor = float(found @ golden) / energy if energy > 0 else 0.0
    if abs(factor) < 1e-2 or abs(factor - 1) < 1e-2:
        return None
    limit = rule.limit if isinstance(rule.limit, float) else rule.limit.reshape(-1)
    near = (found - factor * golden).abs() <= limit * max(1.0, abs(factor))
    return factor if float(near.float().mean()) >= SCALE_SHARE else None


def _flat(result: Tensor) -> Tensor:
    parts = torch.view_as_real(result) if result.dtype.is_complex else result
    return parts.double().reshape(-1)


def _first(bad: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(bad.reshape(-1).int().argmax(), bad.shape))


def _value(element: Any) -> float:
    number = element.item()
    return abs(number) if isinstance(number, complex) else float(number)


def _measure(measured: dict[str, Measured], name: str, errors: Errors) -> None:
    known = measured.get(name)
    if known is None or not errors.max_error <= known.max_error:
        measured[name] = Measured(errors.max_error, errors.max_limit)


def _digest(tensor: Tensor) -> str:
    dense = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(dense.numpy().data).hexdigest()
