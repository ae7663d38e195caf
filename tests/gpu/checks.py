"""Checks of one kernel on several GPUs, run in a child process (tasks.py)."""

import ctypes as c
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from pk_runtime.execution import LocalExecutor
from pk_runtime.gpu import timeline
from pk_runtime.gpu.binding import RefusedError
from pk_runtime.gpu.cuda_api import query
from pk_runtime.gpu.driver import driver, forget_persisting_l2
from pk_runtime.gpu.one_process import DeviceError, OneProcess
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.answers.compare import Checker
from problems.answers.exact import golden_of
from problems.contract import Problem, Tensors
from problems.hosting import Materialized
from problems.reference.ranks import run_ranks
from problems.registry import get
from tests.gpu.kernels import sheet_name
from tests.gpu.stress import back_to_back, poison, skewed
from tests.gpu.tasks import Events

TIMEOUT_S = 3.0
SIMULATED_S = 60.0
PERSISTING_L2 = 6  # CU_LIMIT_PERSISTING_L2_CACHE_SIZE
THREADS = 8  # of torch on the CPU: other children get ready at the same time


@dataclass
class Case:
    """One shape of a problem: inputs, references and limits by seed, made on `device`."""

    problem: Problem
    shape: str
    world: int
    device: str = "cpu"
    inputs: dict[int, list[Tensors]] = field(default_factory=dict)
    calls: dict[int, tuple[Materialized, Checker]] = field(default_factory=dict)
    last: OneProcess | None = None

    @property
    def dims(self) -> dict[str, int]:
        """The problem's letters at this shape."""
        return dict(self.problem.shape(self.shape).dims)

    def prepare(self, seeds: int) -> None:
        """Makes the inputs, and what is on the CPU altogether."""
        for seed in range(seeds):
            self.inputs[seed] = [
                self.problem.make_inputs(r, self.world, seed, self.dims) for r in range(self.world)
            ]
            if self.device == "cpu":
                self.call(seed)

    def call(self, seed: int) -> tuple[Materialized, Checker]:
        """The call of a seed; made at its first use."""
        if seed not in self.calls:
            inputs, kept = (
                [{name: value.to(self.device, copy=True) for name, value in rank.items()}
                 for rank in self.inputs[seed]]
                for _ in range(2)
            )  # fmt: skip
            golden = golden_of(self.problem, inputs)
            reference = run_ranks(self.problem, kept)
            made = Materialized(inputs, reference, golden, self.problem.peer_dims)
            self.calls[seed] = made, Checker(self.problem, golden, reference)
        return self.calls[seed]

    def kernel(self, library: str) -> OneProcess:
        """The kernel on tensors of this shape; RefusedError if it refuses them."""
        inputs, outputs = (
            {name: spec.shape for name, spec in specs.items()}
            for specs in (
                self.problem.input_specs(self.dims, self.world),
                self.problem.output_specs(self.dims, self.world),
            )
        )
        self.last = OneProcess(
            Path(library),
            inputs,
            outputs,
            world_size=self.world,
            dtype=self.problem.dtype,
            timeout_s=TIMEOUT_S,
            devices=devices(self.world),
        )
        return self.last

    def run(self, kernel: OneProcess, seed: int) -> list[Tensors]:
        """One launch on the inputs of a seed and poisoned outputs; the outputs of every rank."""
        made, _ = self.call(seed)
        for rank, tensors in enumerate(made.inputs):
            for name, value in tensors.items():
                kernel.tensors[name][rank].copy_(value)
        for name in self.problem.output_names:
            for out in kernel.tensors[name]:
                poison(out)
        kernel.launch()
        kernel.synchronize()
        names = self.problem.output_names
        return [
            {name: kernel.tensors[name][rank].to(self.device, copy=True) for name in names}
            for rank in range(self.world)
        ]

    def wrong(self, results: Sequence[Tensors], seed: int) -> str:
        """What is wrong with the results of a seed, else nothing."""
        made, checker = self.call(seed)
        if checker.accepts(results):
            return ""
        if self.device == "cpu":
            return checker.compare(results, made.bank).summary
        golden, reference, on_cpu = map(_on_cpu, (made.golden, made.reference, results))
        return Checker(self.problem, golden, reference).compare(on_cpu).summary


def _on_cpu(ranks: Sequence[Tensors]) -> list[Tensors]:
    return [{name: value.cpu() for name, value in tensors.items()} for tensors in ranks]


def same_bits(left: Sequence[Tensors], right: Sequence[Tensors]) -> bool:
    """Whether two lists of outputs are equal bit by bit."""
    return all(
        torch.equal(a[name].contiguous().view(torch.uint8), b[name].contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
        for name in a
    )


def cases(slug: str, shapes: Sequence[str], world: int, seeds: int) -> list[Case]:
    """The shapes that split over the ranks, prepared; those to be timed have one seed, on a GPU."""
    torch.set_num_threads(THREADS)
    problem = get(slug)
    made = []
    for name in shapes:
        shape = problem.shape(name)
        if problem.divides(shape.dims, world):
            large = shape.kind == "bench"
            made.append(Case(problem, name, world, "cuda:0" if large else "cpu"))
            made[-1].prepare(1 if large else seeds)
    return made


def devices(world: int) -> list[int]:
    """The device of every rank: neighbours share one where there are more ranks than GPUs."""
    each = -(-world // torch.cuda.device_count())
    return [rank // each for rank in range(world)]


def ready(world: int) -> dict[str, Any]:
    """The event before the turn at the GPUs; their contexts, which take a second, are made."""
    for device in range(min(world, torch.cuda.device_count())):
        torch.zeros(1, device=f"cuda:{device}")
    return {"event": "ready"}


def check(slug: str, library: str, shapes: Sequence[str], seeds: int, world: int) -> Events:
    """Every shape, twice per seed: an event "shape" each, with what is wrong."""
    todo = cases(slug, shapes, world, seeds)
    yield ready(world)
    for case in todo:
        yield from answered(case, "shape", partial(right, case, library))


def answered(case: Case, event: str, work: Callable[[], str]) -> Iterator[dict[str, Any]]:
    """What `work` finds wrong, or why it could not be done, as one event.

    Whatever meets the lost context first after a kernel gave up, its report says more.
    """
    about = {"shape": case.shape, "world": case.world}
    try:
        yield {"event": event, **about, "wrong": work()}
    except RefusedError as error:
        yield {"event": event, **about, "wrong": f"refused: {error}"}
    except RuntimeError as error:
        traceback.print_exc()
        yield {"event": "report", **about, "text": said_of(case.last, error)}


def said_of(kernel: OneProcess | None, error: RuntimeError) -> str:
    """The reports of a kernel that gave up; else the error itself."""
    try:
        if kernel is not None and not isinstance(error, DeviceError):
            kernel.synchronize()
    except DeviceError as reported:
        return str(reported)
    return str(error)


def right(case: Case, library: str) -> str:
    """Every seed twice: right within the problem's tolerance, and the same bits."""
    kernel = case.kernel(library)
    for seed in case.inputs:
        found = []
        for _ in range(2):
            found.append(case.run(kernel, seed))
            if wrong := case.wrong(found[-1], seed):
                return f"seed {seed}: {wrong}"
        if not same_bits(*found):
            return f"seed {seed}: right within its tolerance, but two runs differ in their bits"
    return ""


def examine(
    slug: str,
    library: str,
    program: str,
    shapes: Sequence[str],
    stressed: Sequence[str],
    simulated: Sequence[str],
    exact: bool,
    seeds: int,
    launches: int,
    world: int,
    crowded: Sequence[str],
) -> Events:
    """All about one kernel: events "shape", "back to back", "skewed", "simulator" and "crowded".

    `exact`: the simulator computes in the same order as the GPU, so that the bits are equal.
    `crowded` shapes are run by twice as many ranks, two on each GPU.
    """
    todo = cases(slug, shapes, world, seeds)
    twice = cases(slug, crowded, 2 * world, 1)
    expected = {case.shape: simulate(program, case, 0) for case in todo if case.shape in simulated}
    yield ready(world)
    for case in todo:
        yield from answered(case, "shape", partial(right, case, library))
        if case.shape in expected:
            work = partial(unlike, case, library, expected[case.shape], exact)
            yield from answered(case, "simulator", work)
        if case.shape in stressed:
            yield from answered(
                case, "back to back", partial(back_to_back, case, library, launches)
            )
            yield from answered(case, "skewed", partial(skewed, case, library, launches))
    for case in twice:
        yield from answered(case, "crowded", partial(right, case, library))


def simulate(program: str, case: Case, seed: int) -> list[Tensors] | str:
    """What the same source computes in the simulator, or why it does not."""
    specs = case.problem.output_specs(case.dims, case.world)
    with TemporaryDirectory() as workspace:
        found = Simulator(LocalExecutor(), Path(workspace)).functional(
            Path(program),
            launches=[case.inputs[seed]],
            outputs=[TensorSpec(name, spec.shape, spec.dtype) for name, spec in specs.items()],
            sheet=load_sheet(sheet_name()),
            schedule_seed=0,
            wall_s=SIMULATED_S,
        )
    if found.outcome != "finished":
        return f"the simulator: {found.outcome}: {found.diagnosis.get('summary', '')}"
    return found.outputs[0]


def unlike(case: Case, library: str, simulated: list[Tensors] | str, exact: bool) -> str:
    """How the results of the two machines differ beyond what they may, else nothing.

    Tensor cores add the products of a tile in an order of their own: kernels with a GEMM agree
    within the problem's tolerance. All others agree in every bit.
    """
    if isinstance(simulated, str):
        return simulated
    gpu = case.run(case.kernel(library), 0)
    if exact:
        different = sum(
            int((a[name].view(torch.uint8) != b[name].view(torch.uint8)).sum())
            for a, b in zip(gpu, simulated, strict=True)
            for name in a
        )
        return f"{different} bytes differ from the simulator's" if different else ""
    _, checker = case.call(0)
    if wrong := case.wrong(simulated, 0):
        return f"the simulator's result: {wrong}"
    for rank, (a, b) in enumerate(zip(gpu, simulated, strict=True)):
        for name, value in a.items():
            if not bool(checker.rule(rank, name).alike(value, b[name]).all()):
                return f"{name} on rank {rank} differs from the simulator's beyond the tolerance"
    return ""


def recorded(library: str, world: int) -> Events:
    """A kernel of `defects` built to record its timeline: an event "timeline", a row per slice."""
    yield ready(world)
    kernel = OneProcess(
        *(Path(library), {"x": (64, 64)}, {"y": (64, 64)}), world_size=world, timeout_s=1.0
    )
    for _ in range(2):
        kernel.launch()
    kernel.synchronize()
    read = {}
    for rank in range(world):
        with torch.cuda.device(rank):
            read[rank] = timeline.read(Path(library))
    found = timeline.timeline(read)
    rows = [[s.rank, s.block, s.role, s.name, s.start_us, s.duration_us] for s in found.slices]
    yield {"event": "timeline", "slices": rows, "left_out": found.left_out}


def defective(library: str, launches: int, world: int) -> Events:
    """A kernel of `defects`: an event "result" with what is wrong after the launches."""
    yield ready(world)
    kernel = OneProcess(
        *(Path(library), {"x": (64, 64)}, {"y": (64, 64)}), world_size=world, timeout_s=1.0
    )
    wrong = ""
    try:
        for launch in range(launches):
            for rank in range(world):
                kernel.tensors["x"][rank].fill_(launch * world + rank + 1)
                poison(kernel.tensors["y"][rank])
            kernel.launch()
            kernel.synchronize()
            seen = [float(kernel.tensors["y"][rank].float().mean()) for rank in range(world)]
            want = [float(launch * world + (rank - 1) % world + 1) for rank in range(world)]
            if seen != want:
                wrong = wrong or f"launch {launch}: y is {seen} instead of {want} on the ranks"
        yield {"event": "result", "wrong": wrong}
    except RuntimeError as error:
        yield {"event": "report", "text": said_of(kernel, error)}


def forgotten_l2() -> Events:
    """An event "l2": bytes that may stay in L2 as asked for, then after they were given up, and
    what the driver says of the context."""

    def kept() -> int:
        size = c.c_size_t()
        query("cuCtxGetLimit", c.byref(size), PERSISTING_L2)
        return size.value

    yield {"event": "ready"}
    driver(0)
    refused = query("cuCtxSetLimit", PERSISTING_L2, 1 << 20)
    before = kept()
    forget_persisting_l2()
    after, code = kept(), query("cuCtxSynchronize")
    yield {"event": "l2", "refused": refused, "before": before, "after": after, "code": code}


TASKS: dict[str, Any] = {
    "check": check,
    "examine": examine,
    "recorded": recorded,
    "defective": defective,
    "forgotten_l2": forgotten_l2,
}
