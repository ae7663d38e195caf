"""One rank per process, through the symmetric heap: what each child process does."""

import random
from pathlib import Path
from typing import Any

import torch

from pk_runtime.gpu.one_process import DeviceError
from pk_runtime.gpu.rank_kernel import RankKernel
from pk_runtime.gpu.symmetric import SymmetricHeap
from problems.contract import OutputSpec
from problems.registry import get
from tests.gpu.checks import TIMEOUT_S, Case
from tests.gpu.stress import DELAY_CYCLES, DELAYED, differing, poison, sleep
from tests.gpu.tasks import Events, serve

SEEDS = 2


def of_a_problem(
    rank: int, world: int, folder: str, slug: str, library: str, shape: str, launches: int
) -> Events:
    """A shipped kernel: right when it copies, right in a replayed graph on skewed ranks."""
    case = Case(get(slug), shape, world)
    case.prepare(SEEDS)
    yield joined(rank)
    heap = SymmetricHeap.join(Path(folder), rank, world, rank)
    specs = (
        case.problem.input_specs(case.dims, world),
        case.problem.output_specs(case.dims, world),
    )
    kernel = RankKernel(Path(library), heap, *map(shapes, specs), timeout_s=TIMEOUT_S)
    try:
        for seed in range(SEEDS):
            inputs = {n: t.to(kernel.device) for n, t in case.inputs[seed][rank].items()}
            outputs = kernel(inputs)
            kernel.synchronize()
            yield {"event": "copied", "wrong": wrong(case, seed, rank, outputs)}
        yield {"event": "graph", "wrong": replayed(kernel, inputs, outputs, launches)}
        heap.barrier()
        kernel.close()
        heap.close()
    except DeviceError as error:
        yield {"event": "report", "text": str(error)}


def of_the_ring(rank: int, world: int, folder: str, library: str) -> Events:
    """A kernel of `defects`: an event "result" with what is wrong after one launch."""
    yield joined(rank)
    heap = SymmetricHeap.join(Path(folder), rank, world, rank)
    square = ((64, 64), torch.bfloat16)
    kernel = RankKernel(Path(library), heap, {"x": square}, {"y": square}, timeout_s=1.0)
    x = torch.full((64, 64), rank + 1.0, dtype=torch.bfloat16, device=kernel.device)
    try:
        y = kernel({"x": x})["y"]
        kernel.synchronize()
        seen, want = float(y.float().mean()), float((rank - 1) % world + 1)
        yield {"event": "result", "wrong": "" if seen == want else f"y is {seen}, not {want}"}
    except DeviceError as error:
        yield {"event": "report", "text": str(error)}


def joined(rank: int) -> dict[str, Any]:
    """The event before the turn at the GPUs; this rank's context is made."""
    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")
    return {"event": "ready"}


def shapes(specs: dict[str, OutputSpec]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype by name."""
    return {name: (spec.shape, spec.dtype) for name, spec in specs.items()}


def wrong(case: Case, seed: int, rank: int, outputs: dict[str, torch.Tensor]) -> str:
    """What is wrong with one rank's outputs, else nothing."""
    _, checker = case.call(seed)
    bad = [n for n, t in outputs.items() if not checker.rule(rank, n).accepts(t.cpu())]
    return f"seed {seed}, rank {rank}: {', '.join(bad)} beyond the tolerance" if bad else ""


def replayed(
    kernel: RankKernel,
    inputs: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    launches: int,
) -> str:
    """Replays of a graph, some of them late, each of which must leave the same bits."""
    want = {name: value.clone() for name, value in expected.items()}
    outputs = {name: torch.empty_like(value) for name, value in expected.items()}
    call = kernel.bind(inputs, outputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    kernel.heap.barrier()
    bad = torch.zeros(launches, dtype=torch.int64, device=kernel.device)
    chance = random.Random(kernel.heap.rank)
    for launch in range(launches):
        for out in outputs.values():
            poison(out)
        if chance.random() < DELAYED:
            sleep(chance.randrange(DELAY_CYCLES))
        graph.replay()
        for name, out in outputs.items():
            bad[launch] += differing(out, want[name])
    kernel.synchronize()
    count = int((bad > 0).sum())
    return f"{count} of {launches} replays differ from a lone launch" if count else ""


if __name__ == "__main__":
    serve({"of_a_problem": of_a_problem, "of_the_ring": of_the_ring})
