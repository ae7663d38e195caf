"""Times shipped kernels on four GPUs beside the simulator's prediction for the same knobs.

Run on a node with four Hopper GPUs, from the repository's root, multicast off:

    NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 \
        python3 -m benchmarks.gpu_kernels

Protocol: one process drives all GPUs; 10 warm-up launches; 7 runs of 20 launches back to back
between two events on each device; a run's time is the maximum over ranks divided by 20; median,
minimum and maximum over runs. Inputs are random and the same in every launch, L2 is not flushed.
"""

import statistics
import tempfile
from pathlib import Path

import torch

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.execution import LocalExecutor
from pk_runtime.gpu.one_process import OneProcess
from pk_runtime.kernels import shipped
from pk_runtime.sheet import load_sheet
from pk_runtime.simulator import Simulator, TensorSpec
from problems.registry import get

WORLD = 4
WARM_UP, RUNS, LAUNCHES = 10, 7, 20
SQUARE = {"M": 8192, "N": 8192, "K": 8192}
LOCAL_K = {"M": 8192, "N": 8192, "K": 2048}
LARGE = {"M": 8192, "N": 4096}

POINTS: list[tuple[str, int, dict[str, int], dict[str, int]]] = [
    ("gemm_reducescatter", 0, SQUARE, {}),
    ("gemm_reducescatter", 0, SQUARE, {"stages": 3, "super_m": 1}),
    ("gemm_reducescatter", 0, SQUARE, {"stages": 3, "super_m": 1, "comm_sms": 12}),
    ("gemm_reducescatter", 0, SQUARE, {"stages": 3, "super_m": 1, "comm_sms": 24}),
    ("gemm_reducescatter", 0, SQUARE, {"super_m": 1}),
    ("gemm_reducescatter", 0, SQUARE, {"interleave": 0}),
    ("gemm_reducescatter", 0, SQUARE, {"comm_sms": 8}),
    ("gemm_reducescatter", 0, SQUARE, {"block_n": 128}),
    ("sp_ag_gemm_m_sharded", 0, SQUARE, {"segment": 4}),
    ("sp_ag_gemm_m_sharded", 0, SQUARE, {"segment": 4, "comm_sms": 12}),
    ("sp_ag_gemm_m_sharded", 0, SQUARE, {"segment": 4, "comm_sms": 24}),
    ("sp_ag_gemm_m_sharded", 0, SQUARE, {}),
    (
        *("sp_ag_gemm_m_sharded", 0, SQUARE),
        {"segment": 4, "block_n": 192, "comm_sms": 14, "super_m": 4},
    ),
    ("gemm_allreduce", 0, LOCAL_K, {}),
    ("gemm_allreduce", 0, LOCAL_K, {"comm_sms": 32}),
    ("allreduce", 0, LARGE, {}),
    ("allreduce", 1, LARGE, {}),
    ("alltoall", 0, LARGE, {}),
    ("allgather", 0, LARGE, {}),
]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _run_us(kernel: OneProcess) -> float:
    events = []
    for rank in range(WORLD):
        with torch.cuda.device(rank):
            pair = [_event(), _event()]
            pair[0].record()
            events.append(pair)
    for _ in range(LAUNCHES):
        kernel.launch()
    for rank in range(WORLD):
        with torch.cuda.device(rank):
            events[rank][1].record()
    kernel.synchronize()
    longest_ms = max(float(start.elapsed_time(end)) for start, end in events)
    return longest_ms / LAUNCHES * 1e3


def main() -> None:
    """Prints one row per point: predicted and measured microseconds."""
    folder = Path(tempfile.mkdtemp())
    compiler = Compiler(folder / "cache")
    simulator = Simulator(LocalExecutor(), folder / "runs")
    sheet = load_sheet("h200x4")
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    print("problem | kernel | dims | knobs | simulated us | measured us: median min max")
    for slug, number, dims, knobs in POINTS:
        problem, base = get(slug), shipped(slug)[number]
        candidate = Candidate("pk", base.files, {**base.knobs, **knobs})
        inputs, outputs = problem.input_specs(dims, WORLD), problem.output_specs(dims, WORLD)
        predicted = simulator.timing(
            compiler.simulator(candidate),
            inputs=[TensorSpec(n, s.shape, s.dtype) for n, s in inputs.items()],
            outputs=[TensorSpec(n, s.shape, s.dtype) for n, s in outputs.items()],
            world_size=WORLD,
            sheet=sheet,
        )
        kernel = OneProcess(
            compiler.library(candidate),
            {n: s.shape for n, s in inputs.items()},
            {n: s.shape for n, s in outputs.items()},
            world_size=WORLD,
        )
        for name in inputs:
            for tensor in kernel.tensors[name]:
                tensor.copy_(torch.randn(tensor.shape, device=tensor.device) / 64)
        for _ in range(WARM_UP):
            kernel.launch()
        kernel.synchronize()
        runs = [_run_us(kernel) for _ in range(RUNS)]
        chosen = " ".join(f"{k}={v}" for k, v in knobs.items()) or "defaults"
        size = " ".join(f"{k}{v}" for k, v in dims.items())
        print(
            f"{slug} | {number} | {size} | {chosen} | {predicted.time_us:.1f} | "
            f"{statistics.median(runs):.1f} {min(runs):.1f} {max(runs):.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
