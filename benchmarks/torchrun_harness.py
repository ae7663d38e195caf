"""What one trial costs in a harness that starts `torchrun` for every trial, as others do.

    python3 -m benchmarks.torchrun_harness --kernel gemm_reducescatter --trials 2

A trial is one `torchrun` job: start, NCCL group, inputs, reference, one call compared, 20 calls
timed. The kernel is built beforehand. ParallelKernelBench starts two jobs a trial and five trials
a problem; the judge of this project keeps its processes, so compare with the seconds that
`python3 -m sandbox.gpu.evaluate KERNEL ... --repeat 2` prints for its second run, which checks
hundreds of launches and times every bench shape besides.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.gpu.environment import quiet_multicast
from pk_runtime.compiler import Compiler
from pk_runtime.gpu.rank_kernel import RankKernel
from pk_runtime.gpu.symmetric import SymmetricHeap
from pk_runtime.interface import TensorShape
from pk_runtime.kernels import shipped_kernel
from problems.contract import OutputSpec
from problems.registry import get

CACHE = Path(".pkforge") / "gpu-cache"
PORT = 29577
LIMIT_S = 120.0
CALLS = 20


def _shapes(specs: dict[str, OutputSpec]) -> dict[str, TensorShape]:
    return {name: (spec.shape, spec.dtype) for name, spec in specs.items()}


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def trial(library: Path, slug: str) -> None:
    """One rank of a job: right once, then timed; raises if the result is wrong."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    group = dist.group.WORLD
    assert group is not None
    problem = get(slug)
    dims = dict(next(shape for shape in problem.shapes if shape.kind == "bench").dims)
    given = _shapes(problem.input_specs(dims, world))
    inputs = {
        name: torch.randn(shape, device="cuda").div_(64).to(dtype)
        for name, (shape, dtype) in given.items()
    }
    heap = SymmetricHeap.from_group(group)
    kernel = RankKernel(library, heap, given, _shapes(problem.output_specs(dims, world)))
    got, want = kernel(inputs), problem.reference(group, **inputs)
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-2, atol=1e-2)
    start, end = _event(), _event()
    start.record()
    for _ in range(CALLS):
        kernel(inputs)
    end.record()
    torch.cuda.synchronize()
    if rank == 0:
        print(
            f"    {float(start.elapsed_time(end)) / CALLS * 1e3:.1f} us a call, eager", flush=True
        )
    heap.barrier()
    heap.close()
    dist.destroy_process_group()


def main(argv: list[str] | None = None) -> int:
    """Builds, starts the jobs one after the other, prints seconds a trial; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="benchmarks.torchrun_harness", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kernel", default="gemm_reducescatter", help="name of a shipped kernel")
    parser.add_argument("--problem", default="gemm_reducescatter")
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--library", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.library is not None:
        trial(options.library, options.problem)
        return 0
    quiet_multicast()
    library = Compiler(CACHE).library(shipped_kernel(options.kernel))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "1"),
        *("--nproc-per-node", str(torch.cuda.device_count())),
        *("--master-addr", "127.0.0.1", "--master-port", str(PORT)),
        *("-m", "benchmarks.torchrun_harness"),
        *("--problem", options.problem, "--library", str(library)),
    ]
    seconds = []
    for _ in range(options.trials):
        started = time.monotonic()
        done = subprocess.run(command, timeout=LIMIT_S, check=False)
        if done.returncode != 0:
            print(f"the job failed with exit code {done.returncode}", file=sys.stderr)
            return 1
        seconds.append(time.monotonic() - started)
        print(f"{seconds[-1]:.1f} s a torchrun job", flush=True)
    print(
        f"{3600 / min(seconds):.0f} single-job trials an hour, {360 / min(seconds):.0f} at ten jobs"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
