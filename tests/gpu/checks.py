"""Checks of one kernel on several GPUs, run in a child process (tasks.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pk_runtime.gpu.one_process import DeviceError, LaunchError, OneProcess
from problems.compare import Checker
from problems.contract import Problem, Tensors
from problems.exact import golden_of
from problems.hosting import Materialized
from problems.ranks import run_ranks
from problems.registry import get
from tests.gpu.kernels import WORLD
from tests.gpu.tasks import Events

TIMEOUT_S = 3.0


@dataclass
class Case:
    """One shape of a problem: inputs, references and limits by seed, made on `device`."""

    problem: Problem
    shape: str
    world: int
    device: str = "cpu"
    calls: dict[int, tuple[Materialized, Checker]] = field(default_factory=dict)

    def call(self, seed: int) -> tuple[Materialized, Checker]:
        """The call of a seed; made at its first use."""
        if seed not in self.calls:
            dims = self.problem.shape(self.shape).dims
            inputs = [
                {
                    name: value.to(self.device)
                    for name, value in self.problem.make_inputs(r, self.world, seed, dims).items()
                }
                for r in range(self.world)
            ]
            golden = golden_of(self.problem, inputs)
            kept = [{name: value.clone() for name, value in rank.items()} for rank in inputs]
            made = Materialized(
                inputs, run_ranks(self.problem, kept), golden, self.problem.peer_dims
            )
            self.calls[seed] = made, Checker(self.problem, made.golden, made.reference)
        return self.calls[seed]

    def kernel(self, library: str) -> OneProcess:
        """The kernel on tensors of this shape; LaunchError if it refuses them."""
        dims = self.problem.shape(self.shape).dims
        inputs, outputs = (
            {name: spec.shape for name, spec in specs.items()}
            for specs in (
                self.problem.input_specs(dims, self.world),
                self.problem.output_specs(dims, self.world),
            )
        )
        return OneProcess(
            Path(library),
            inputs,
            outputs,
            world_size=self.world,
            dtype=self.problem.dtype,
            timeout_s=TIMEOUT_S,
        )

    def load(self, kernel: OneProcess, seed: int) -> None:
        """Puts the inputs of a seed into the kernel's tensors, and NaN into its outputs."""
        made, _ = self.call(seed)
        for rank, tensors in enumerate(made.inputs):
            for name, value in tensors.items():
                kernel.tensors[name][rank].copy_(value)
        self.poison(kernel)

    def poison(self, kernel: OneProcess) -> None:
        """NaN, or the largest integer, in every output."""
        for name in self.problem.output_names:
            for out in kernel.tensors[name]:
                floating = out.dtype.is_floating_point
                out.fill_(float("nan") if floating else torch.iinfo(out.dtype).max)

    def results(self, kernel: OneProcess) -> list[Tensors]:
        """The outputs of every rank on `device`."""
        names = self.problem.output_names
        return [
            {name: kernel.tensors[name][rank].to(self.device, copy=True) for name in names}
            for rank in range(self.world)
        ]

    def wrong(self, results: Sequence[Tensors], seed: int) -> str:
        """What is wrong with the results of a seed, else nothing."""
        made, checker = self.call(seed)
        found = checker.compare(results, made.bank)
        return "" if found.ok else found.summary


def same_bits(left: Sequence[Tensors], right: Sequence[Tensors]) -> bool:
    """Whether two lists of outputs are equal bit by bit."""
    return all(
        torch.equal(a[name].contiguous().view(torch.uint8), b[name].contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
        for name in a
    )


def check(slug: str, library: str, shapes: Sequence[str], seeds: int, world: int = WORLD) -> Events:
    """Every shape once per seed and once more: an event "shape" each, with what is wrong."""
    torch.set_num_threads(8)  # other children get ready at the same time
    cases = [Case(get(slug), shape, world) for shape in shapes]
    for case in cases:
        for seed in range(seeds):
            case.call(seed)
    yield {"event": "ready"}
    for case in cases:
        try:
            yield {"event": "shape", "shape": case.shape, "wrong": _right(case, library, seeds)}
        except LaunchError as error:
            yield {"event": "shape", "shape": case.shape, "wrong": f"refused: {error}"}
        except DeviceError as error:
            yield {"event": "report", "shape": case.shape, "text": str(error)}


def _right(case: Case, library: str, seeds: int) -> str:
    kernel = case.kernel(library)
    for seed in range(seeds):
        found = []
        for _ in range(2):
            case.load(kernel, seed)
            kernel.launch()
            kernel.synchronize()
            found.append(case.results(kernel))
            if wrong := case.wrong(found[-1], seed):
                return wrong
        if not same_bits(*found):
            return "right within its tolerance, but two runs differ in their bits"
    return ""


TASKS: dict[str, Any] = {"check": check}
