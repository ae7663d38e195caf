"""Times the problems' references (PyTorch + NCCL) on four GPUs, eager and in a CUDA graph.

Run beside `benchmarks.gpu_kernels`, from the repository's root, multicast off:

    NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 \
        python3 -m benchmarks.nccl_baseline

Protocol: one process per GPU; 10 warm-up calls; 7 runs of 20 calls back to back between two
events; a run's time is the maximum over ranks divided by 20; median, minimum and maximum over
runs. Inputs are random and the same in every call, L2 is not flushed.
"""

import statistics
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from problems.registry import get

WORLD = 4
WARM_UP, RUNS, CALLS = 10, 7, 20
SQUARE = {"M": 8192, "N": 8192, "K": 8192}
POINTS = (
    ("gemm_reducescatter", SQUARE),
    ("sp_ag_gemm_m_sharded", SQUARE),
    ("gemm_allreduce", {"M": 8192, "N": 8192, "K": 2048}),
    ("allreduce", {"M": 8192, "N": 4096}),
    ("alltoall", {"M": 8192, "N": 4096}),
    ("allgather", {"M": 8192, "N": 4096}),
)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _runs_us(call: Callable[[], object]) -> list[float]:
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(RUNS):
        torch.cuda.synchronize()
        dist.barrier()
        start, end = _event(), _event()
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        torch.cuda.synchronize()
        longest = torch.tensor(float(start.elapsed_time(end)) / CALLS * 1e3, device="cuda")
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        times.append(longest.item())
    return times


def _graphed(call: Callable[[], object]) -> Callable[[], object]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _worker(rank: int, store: str) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=120),
        device_id=torch.device("cuda", rank),
    )
    group = dist.group.WORLD
    assert group is not None
    for slug, dims in POINTS:
        problem = get(slug)
        inputs = {
            name: torch.randn(spec.shape, device="cuda").div_(64).to(spec.dtype)
            for name, spec in problem.input_specs(dims, WORLD).items()
        }

        def call() -> object:
            return problem.reference(group, **inputs)  # noqa: B023 - called before the next turn

        for kind, action in (("eager", call), ("graph", _graphed(call))):
            times = _runs_us(action)
            if rank == 0:
                size = " ".join(f"{k}{v}" for k, v in dims.items())
                print(
                    f"{slug} | {size} | {kind} | {statistics.median(times):.1f} "
                    f"{min(times):.1f} {max(times):.1f}",
                    flush=True,
                )
    dist.destroy_process_group()


def main() -> None:
    """Prints one row per problem and kind: measured microseconds."""
    print("problem | dims | PyTorch + NCCL | measured us: median min max", flush=True)
    store = Path(tempfile.mkdtemp()) / "store"
    spawn(_worker, args=(str(store),), nprocs=WORLD)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
