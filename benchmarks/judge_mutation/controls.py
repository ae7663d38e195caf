"""What must hold of an unbroken judge: small checks, by suite, each with a name.

A suite yields (what, whether it holds); `first_failure` is what a mutation is caught by.
"""

import dataclasses
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.attacks.judging import Outcome, examine, judge_at
from benchmarks.attacks.suite import Entry, entries
from benchmarks.judge_mutation.edits import SUITES, Suite
from benchmarks.judge_mutation.objects import SAMPLES, built
from pk_runtime.candidate import Candidate
from pk_runtime.execution import Command, Completed
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec, TimingRun
from pk_runtime.target import parse_target
from problems.answers.compare import Checker, changed_inputs, input_digests
from problems.answers.tolerance import Rule
from problems.contract import Problem, Tensors, bench
from problems.description import describe
from problems.hidden import hidden_shapes
from problems.hosting import InProcessHost
from problems.lint.validation import breaches
from problems.registry import get
from problems.roofline import roofline_of
from sandbox.isolation import UnisolatedExecutor
from sandbox.judge import Judge
from sandbox.rules.objects import refusals
from sandbox.rules.scan import scan
from sandbox.stages import StageFailed
from sandbox.stages.bench import Bench
from sandbox.stages.demand import number

TARGET = "sim:h200x4"
Check = tuple[str, bool]
# What the judge suite runs, the ones that catch most first.
JUDGED = (
    "cache in scratch", "mode by a callback", "sum of two when large", "idle at bench shapes",
    "one rank works", "right at one shape", "right on four ranks", "waits for one peer",
    "knows the stated sizes", "never signals", "inline assembly", "assembler name",
)  # fmt: skip


def first_failure(first: Suite, cache: Path, *, alone: bool = False) -> str | None:
    """The first check that does not hold, of the suite `first` and then, or not, of the others."""
    others = () if alone else (other for other in SUITES if other != first)
    for suite in (first, *others):
        try:
            for what, holds in _SUITES[suite](cache):
                if not holds:
                    return f"{suite}: {what}"
        except Exception as error:  # noqa: BLE001 - a broken judge may raise anything
            return f"{suite}: it raises {type(error).__name__}: {error}"[:160]
    return None


def comparison(cache: Path) -> Iterator[Check]:
    """Right results pass, each kind of wrong one is found, on every rank and in every output."""
    for slug in ("alltoall", "allreduce", "gemm_reducescatter"):
        problem = get(slug)
        made = InProcessHost(problem).materialize("tiny", 4, 7)
        description = describe(problem, 4)
        check = Checker(description, made.golden, made.reference)
        name = problem.output_names[0]
        right = made.reference
        rounded = [{name: rank[name].to(right[0][name].dtype)} for rank in made.golden]
        yield f"{slug}: the reference is right", check.compare(right).ok
        yield f"{slug}: the rounded golden is right", check.compare(rounded).ok
        for what, rank, value in _wrong(right, name):
            results = [dict(each) for each in right]
            results[rank][name] = value  # type: ignore[assignment]
            yield f"{slug}: {what} on rank {rank}", not check.compare(results).ok
        yield f"{slug}: a rank too few", not check.compare(right[:-1]).ok
        more = [{**each, "more": each[name]} for each in right]
        yield f"{slug}: an output too many", not check.compare(more).ok
        yield from _precise(slug, check, made.golden, right, name)
        yield from _explained(slug, check, made, name)
        before = input_digests(made.inputs)
        made.inputs[1][next(iter(made.inputs[1]))].view(torch.uint8).reshape(-1)[3] ^= 1
        yield f"{slug}: an input changed by a bit", bool(changed_inputs(before, made.inputs))
    yield from _sizes()
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    rule = Rule("T2", values.double(), values)
    yield "fp32: the same numbers", rule.accepts(values)
    yield "fp32: a tenth of a percent", not rule.accepts(values * 1.001)
    spoiled = values.clone()
    spoiled[5, 5] = math.nan
    yield "fp32: one NaN", not rule.accepts(spoiled)


def _wrong(right: list[Tensors], name: str) -> Iterator[tuple[str, int, object]]:
    for rank in (0, 3):
        value = right[rank][name]
        yield "zeros", rank, torch.zeros_like(value)
        for what, element in (("NaN", math.nan), ("infinity", math.inf), ("a jump", 7.0)):
            for index in (0, -1):
                spoiled = value.clone()
                spoiled.view(-1)[index] = element
                yield f"{what} at element {index}", rank, spoiled
        yield "another dtype", rank, value.float()
        yield "another shape", rank, value.reshape(-1)
        yield "nothing", rank, None
        yield "a list", rank, value.tolist()
        yield "a tensor on no device", rank, value.to_sparse()


def _precise(
    slug: str, check: Checker, golden: list[Tensors], right: list[Tensors], name: str
) -> Iterator[Check]:
    rule = check.rule(0, name)
    if rule.tolerance == "T0":
        # 0.0 and -0.0 are equal and not the same bits.
        zero = Rule("T0", torch.zeros(4), torch.zeros(4))
        yield f"{slug}: minus zero is not zero", not zero.accepts(-torch.zeros(4))
        return
    exact = golden[0][name]
    expected = rule.expected()
    yield f"{slug}: the golden is expected", torch.equal(expected, exact)
    assert isinstance(rule.limit, float)
    yield f"{slug}: beyond the limit", not _with_one(check, right, name, exact, 1.5 * rule.limit)
    yield f"{slug}: within the limit", _with_one(check, right, name, exact, 0.3 * rule.limit)
    noise = torch.sign(exact) * 0.5 * rule.limit
    spread = [dict(rank) for rank in right]
    spread[0][name] = (exact + noise).to(right[0][name].dtype)
    found = check.compare(spread)
    yield f"{slug}: everywhere off by half of the limit", not found.ok


def _with_one(check: Checker, right: list[Tensors], name: str, exact: Tensor, error: float) -> bool:
    """Whether the golden with one element of small size that is off by `error` is accepted."""
    results = [dict(rank) for rank in right]
    value = exact.to(right[0][name].dtype)
    index = int(exact.abs().view(-1).argmin())
    value.view(-1)[index] = float(exact.view(-1)[index]) + error
    results[0][name] = value
    return check.compare(results).ok


def _explained(slug: str, check: Checker, made: Any, name: str) -> Iterator[Check]:
    zeros = [{name: torch.zeros_like(rank[name])} for rank in made.reference]
    finding = check.compare(zeros, bank=made.bank).findings[0]
    yield (
        f"{slug}: zeros are explained",
        finding.match is not None and finding.match.name == "zeros",
    )
    noise = [{name: torch.full_like(rank[name], 3.25)} for rank in made.reference]
    finding = check.compare(noise, bank=made.bank).findings[0]
    yield f"{slug}: what is new is not explained", finding.match is None


def _sizes() -> Iterator[Check]:
    """A kernel that is right for numbers of one size only is found within a few draws."""
    problem = get("gemm_reducescatter")
    verdicts: dict[str, list[bool]] = {}
    for seed in range(6):
        made = InProcessHost(problem).materialize("tiny", 2, seed)
        check = Checker(problem, made.golden, made.reference)
        exact = [rank["c"] for rank in made.golden]
        for what, changed in (
            ("kept", exact),
            ("flushed", [torch.where(c.abs() < 1e-3, 0.0, c) for c in exact]),
            ("clamped", [c.clamp(-8, 8) for c in exact]),
        ):
            results = [{"c": c.bfloat16()} for c in changed]
            verdicts.setdefault(what, []).append(check.accepts(results))
    yield "numbers of every size can be right", all(verdicts["kept"])
    yield "small values taken for zero", not all(verdicts["flushed"])
    yield "large values clamped", not all(verdicts["clamped"])


class _Pretender(UnisolatedExecutor):
    """An executor whose program leaves what it is told to, and runs nothing."""

    def __init__(self, leave: Callable[[Path], None], **ended: Any) -> None:
        super().__init__()
        self._leave = leave
        self._ended = ended

    def run(self, command: Command) -> Completed:
        self._leave(command.workdir)
        done = Completed(0, None, None, b"", b"", 0.1)
        return dataclasses.replace(done, **self._ended)


def reports(cache: Path) -> Iterator[Check]:
    """Nothing in what a program leaves is believed that is out of form."""
    sheet, spec = load_sheet("h200x4"), [TensorSpec("x", (4,), torch.float32)]
    good = '{"outcome": "finished", "time_us": %s}'

    def ran(report: str, output: Callable[[Path], object], **ended: Any) -> str:
        def leave(folder: Path) -> None:
            (folder / "report.json").write_text(report)
            output(folder / "out.0.0.x.bin")

        with tempfile.TemporaryDirectory() as folder:
            simulator = Simulator(_Pretender(leave, **ended), Path(folder))
            found = simulator.functional(Path("x"), launches=[[{"x": torch.zeros(4)}]],
                                         outputs=spec, sheet=sheet, schedule_seed=0)  # fmt: skip
            return found.outcome

    def timed(text: str) -> str:
        def leave(folder: Path) -> None:
            (folder / "report.json").write_text(good % text)

        with tempfile.TemporaryDirectory() as folder:
            simulator = Simulator(_Pretender(leave), Path(folder))
            run = simulator.timing(Path("x"), inputs=spec, outputs=spec, world_size=1, sheet=sheet)
            return str(run.diagnosis.get("summary", ""))

    with tempfile.NamedTemporaryFile() as secret:
        secret.write(bytes(16))
        secret.flush()
        yield "a whole output", ran(good % 1, lambda p: p.write_bytes(bytes(16))) == "finished"
        yield "a link", ran(good % 1, lambda p: os.symlink(secret.name, p)) == "fault"
    yield "too long an output", ran(good % 1, lambda p: p.write_bytes(bytes(17))) == "fault"
    long = good % 1 + " " * (5 << 20)
    yield "too long a report", ran(long, lambda p: p.write_bytes(bytes(16))) == "fault"
    yield "no output", ran(good % 1, lambda p: None) == "fault"
    whole = bytes(16)
    yield "an exit code", ran(good % 1, lambda p: p.write_bytes(whole), exit_code=3) == "fault"
    stopped = ran(good % 1, lambda p: p.write_bytes(whole), exceeded="wall")
    yield "a run that was stopped", stopped == "timeout"
    for text in ("0", "-1.5", "NaN", "Infinity", '"1"', "null"):
        yield f"a time of {text}", "no usable time" in timed(text)
    yield "an infinite figure", number(math.inf) == 0.0
    yield "a figure", number(2) == 2.0


def rules(cache: Path) -> Iterator[Check]:
    """Every text that must be refused is, for the reason it must be; nothing else."""
    for entry in entries():
        if entry.sort != "problem":
            found = scan(entry.candidate)
            said = " ".join(map(str, found))
            if entry.text is None:
                yield f"{entry.sort}/{entry.name} is clean", not found
            else:
                refused = bool(found) and all(words in said for words in entry.text)
                yield f"{entry.sort}/{entry.name} is refused", refused


def objects(cache: Path) -> Iterator[Check]:
    """Each name in a compiled kernel that must be refused is, and no other."""
    for sample in SAMPLES:
        with built(sample) as path:
            found = {name for name, _ in refusals(path, gpu=sample.gpu)}
        yield f"an object that {sample.what}", found == set(sample.refused)


def problems(cache: Path) -> Iterator[Check]:
    """Every problem file that lies is refused, for its reason."""
    judge = Judge(cache=cache, executor=UnisolatedExecutor())
    for entry in entries(sort="problem"):
        if "P4" not in entry.entries:
            yield f"problem/{entry.name}", _held(examine(judge, entry, parse_target(TARGET)))
    kind = type(get("allreduce"))
    more = tuple(bench(M=8, N=columns) for columns in range(1, 99))
    crowd: Problem = type("Crowd", (kind,), {"shapes": kind.shapes + more})()
    yield "a hundred shapes are a breach", bool(breaches(crowd))


def judging(cache: Path) -> Iterator[Check]:
    """Whole judgements: seeds, faults, and the candidates that only running them tells apart."""
    target, nothing = parse_target(TARGET), Candidate("pk", {"kernel.cu": "#include <pk/pk.h>\n"})
    with tempfile.TemporaryDirectory() as folder:
        broken = Judge(cache=Path(folder), executor=_Pretender(_raise))
        entry = next(e for e in entries("honest", "pk") if e.name == "shipped alltoall")
        verdict = broken.evaluate(entry.candidate, get("alltoall"), target, depth="quick")
        yield "a fault of the machine is nobody's", verdict.status == "infra_error"
    yield "a time below the roofline is refused", _refuses_the_impossible()
    with judge_at(cache) as judge:
        seeds = {judge.evaluate(nothing, get("alltoall"), target).seed for _ in range(2)}
        yield "seeds differ", len(seeds) == 2
        drawn = {hidden_shapes(get("alltoall"), seed, 4)[0].dims["N"] for seed in range(9)}
        yield "hidden shapes differ", len(drawn) > 1
        yield entry.name, _held(examine(judge, entry, target))
        right = judge.evaluate(entry.candidate, get("alltoall"), target, depth="quick", seed=7)
        tried = [each.get("orders", {}) for each in right.evidence.get("checks", ())]
        yield "every order is tried", bool(tried) and all(each.get("complete") for each in tried)
        named: dict[str, Entry] = {e.name: e for e in entries("attack", "pk")}
        for name in JUDGED:
            yield f"pk/{name}", _held(examine(judge, named[name], target))


def _refuses_the_impossible() -> bool:
    """A run that does all of its work in half of the time that the machine needs for it."""
    target, problem = parse_target(TARGET), describe(get("alltoall"), 4)
    shape = next(shape for shape in problem.shapes if shape.kind == "bench")
    roof = roofline_of(shape.costs, problem.peak, target.sheet)
    plenty = dict.fromkeys(("link_out_bytes", "link_in_bytes", "flops", "hbm_bytes"), 1e18)
    run = TimingRun("finished", roof.us / 2, diagnosis={"ranks": [plenty] * 4})
    simulator = Simulator(_Pretender(_raise), Path())
    bench = Bench(Path(), Candidate("pk", {}), simulator, target, lambda stage, detail: None)
    try:
        bench._must_be_physical(run, shape, roof, "here")
    except StageFailed as failed:
        return failed.status == "rejected"
    return False


def _raise(folder: Path) -> None:
    raise OSError("no space left on device")


def _held(outcome: Outcome) -> bool:
    return outcome.ok


_SUITES: dict[Suite, Callable[[Path], Iterator[Check]]] = {
    "comparison": comparison,
    "reports": reports,
    "rules": rules,
    "objects": objects,
    "problems": problems,
    "judge": judging,
}
