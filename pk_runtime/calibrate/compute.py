"""Tensor-core rate, and what a GEMM loses while other SMs communicate."""

import torch
from torch import Tensor

from pk_runtime.calibrate.node import Node, Sample, Start
from pk_runtime.calibrate.transfers import Row, moving, starting

# (m, n, k) of one rank: what the fused operators compute on four GPUs at 2048, 4096, 8192, 16384.
SHAPES = (
    (2048, 2048, 512),
    (4096, 4096, 1024),
    (4096, 1024, 4096),
    (8192, 8192, 2048),
    (8192, 2048, 8192),
    (16384, 16384, 4096),
    (16384, 4096, 16384),
)
SLOWDOWN_SHAPE = (8192, 8192, 2048)
COMM_SMS = (0, 2, 4, 8, 16, 32)
SAMPLE_US = 8000.0
MARGIN_US = 4000.0  # twice what passes between the start of the pushes and that of the GEMMs


def measure_gemms(node: Node, shapes: tuple[tuple[int, int, int], ...]) -> list[Row]:
    """cuBLAS bf16 GEMMs: one GPU alone, and all GPUs at once (where power may be shared)."""
    rows: list[Row] = []
    for m, n, k in shapes:
        for who, devices in (("one GPU", [0]), ("all GPUs", list(node.devices))):
            if who == "all GPUs" and node.world == 1:
                continue
            sample = _gemms(node, (m, n, k), devices)
            tflops = 2e-6 * m * n * k / sample.us
            rows.append(
                {
                    "m": m, "n": n, "k": k, "gpus": who,
                    "us": round(sample.us, 2), "us_min": round(sample.us_min, 2),
                    "us_max": round(sample.us_max, 2), "tflops": round(tflops, 1),
                }
            )  # fmt: skip
    return rows


def _operands(shape: tuple[int, int, int], device: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normal random a [m, k], b [k, n] and room for c [m, n], bf16."""
    m, n, k = shape
    on = torch.device("cuda", device)
    a = torch.randn(m, k, device=on).bfloat16()
    b = (torch.randn(k, n, device=on) * k**-0.5).bfloat16()
    return a, b, torch.empty(m, n, dtype=torch.bfloat16, device=on)


def _multiplying(node: Node, operands: tuple[Tensor, Tensor, Tensor], times: int) -> Start:
    a, b, c = operands
    device = a.device.index

    def start(_: int) -> None:
        with torch.cuda.device(device), torch.cuda.stream(node.streams[device]):
            for _ in range(times):
                torch.matmul(a, b, out=c)

    return start


def _gemms(node: Node, shape: tuple[int, int, int], devices: list[int]) -> Sample:
    """One GEMM of a row of them, long enough to be timed and to reach its steady clock."""
    operands = {d: _operands(shape, d) for d in devices}
    node.synchronize()
    once = node.sample_us({d: _multiplying(node, o, 1) for d, o in operands.items()})
    once = node.sample_us({d: _multiplying(node, o, 1) for d, o in operands.items()})
    times = max(2, min(200, round(SAMPLE_US / once)))
    starts = {d: _multiplying(node, o, times) for d, o in operands.items()}
    return node.sample(starts).per(times)


def measure_slowdown(node: Node, comm_sms: tuple[int, ...] = COMM_SMS) -> list[Row]:
    """The GEMM on all GPUs while on each of them k SMs push plain stores to all peers in turn.

    The pushing blocks hold their SMs alone (shared memory) and start first. `expected` is the time
    if the GEMM only lost the SMs: alone x SMs / (SMs - k).
    """
    alone = _gemms(node, SLOWDOWN_SHAPE, list(node.devices)).us
    operands = {d: _operands(SLOWDOWN_SHAPE, d) for d in node.devices}
    rows: list[Row] = []
    for k in comm_sms:
        us, rate, covered = alone, 0.0, True
        if k:
            us, rate, covered = _beside(node, operands, k, alone)
        rows.append(
            {
                "comm_sms": k, "gemm_us": round(us, 2), "slowdown": round(us / alone, 4),
                "expected_slowdown": round(node.sms / (node.sms - k), 4),
                "push_gb_per_s": round(rate, 1), "covered": covered,
            }
        )  # fmt: skip
    return rows


def _beside(
    node: Node, operands: dict[int, tuple[Tensor, Tensor, Tensor]], sms: int, alone_us: float
) -> tuple[float, float, bool]:
    """(us of a GEMM, GB/s of the pushes, whether these lasted longer than the GEMMs)."""
    times = max(2, round(SAMPLE_US / alone_us))
    duration = times * alone_us * (1.4 + sms / (node.sms - sms)) + MARGIN_US
    moved = [torch.zeros(1, dtype=torch.int64, device=f"cuda:{d}") for d in node.devices]
    streams = [torch.cuda.Stream(d, priority=-1) for d in node.devices]  # type: ignore[no-untyped-call]
    node.synchronize()
    for device in node.devices:  # first, so that these blocks have their SMs when the GEMM comes
        work = moving(node, device, sms, duration, moved[device].data_ptr())
        starting(node, work)(int(streams[device].cuda_stream))
    us = node.sample_us({d: _multiplying(node, o, times) for d, o in operands.items()}) / times
    rate = min(float(m.item()) for m in moved) / duration / 1e3
    return us, rate, us * times + MARGIN_US / 2 < duration
