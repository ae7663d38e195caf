"""Times the GEMM main loop alone beside cuBLAS: no communication, one GPU.

    python3 -m benchmarks.gpu_gemm --shapes 8192x8192x2048,8192x2048x8192 --knobs "super_m=1,8"

Shapes are MxNxK, bf16. Every combination of the knobs is built and compared with cuBLAS, then all
take turns: a sample is one CUDA graph of several launches, the same for cuBLAS, and the table has
the median of the samples in microseconds and in TFLOP/s. Exit code 1 if a result is wrong or a
combination cannot run.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pk_runtime.candidate import Candidate, CandidateError
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.gpu.one_process import DeviceError, LaunchError, OneProcess

SOURCE = Path(__file__).with_name("gemm.cu")
CACHE = Path(".pkforge") / "gpu-cache"
SHAPES = "8192x8192x2048,8192x2048x8192,4096x4096x1024,4096x1024x4096,2048x2048x512"
SAMPLE_US = 5000.0
ERROR_LIMIT = 5e-3  # relative to cuBLAS; bf16 rounding gives about 2e-3


@dataclass
class Entry:
    """One way to compute the product, as a CUDA graph of `launches` launches."""

    name: str
    graph: torch.cuda.CUDAGraph
    launches: int
    kernel: OneProcess | None = None
    samples: list[float] = field(default_factory=list)


def gemm(knobs: dict[str, int]) -> Candidate:
    """The kernel with these knobs."""
    return Candidate("pk", {"kernel.cu": SOURCE.read_text(encoding="utf-8")}, knobs)


def combinations(text: str) -> list[dict[str, int]]:
    """`stages=3,4;super_m=1,8` as the four settings it names; ValueError if it is malformed."""
    names, choices = [], []
    for part in filter(None, text.split(";")):
        name, equals, values = part.partition("=")
        if not equals:
            raise ValueError(f"--knobs: {part!r} is not NAME=VALUE,VALUE")
        names.append(name.strip())
        choices.append([int(value) for value in values.split(",")])
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*choices)]


def captured(name: str, launch: Callable[[], object], us: float) -> Entry:
    """`launch` as a graph long enough for a sample, if one launch takes about `us`."""
    launches = max(3, min(100, round(SAMPLE_US / us)))
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(launches):
            launch()
    return Entry(name, graph, launches)


def sample(entry: Entry) -> float:
    """Microseconds of one launch, from one replay."""
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    entry.graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / entry.launches


def compare(shape: str, settings: list[dict[str, int]], turns: int) -> bool:
    """Prints the table of one shape; whether every combination ran and was right."""
    m, n, k = (int(size) for size in shape.split("x"))
    a = torch.randn(m, k, device="cuda").bfloat16()
    b = (torch.randn(k, n, device="cuda") * k**-0.5).bfloat16()
    want = torch.matmul(a, b)
    out, us = torch.empty_like(want), 2e-6 * m * n * k / 600
    entries = [captured("cuBLAS", lambda: torch.matmul(a, b, out=out), us)]
    fine = True
    for knobs in settings:
        name = " ".join(f"{key}={value}" for key, value in knobs.items()) or "default"
        try:
            library = Compiler(CACHE).library(gemm(knobs))
            kernel = OneProcess(library, {"a": (m, k), "b": (k, n)}, {"c": (m, n)}, world_size=1)
            kernel.tensors["a"][0].copy_(a)
            kernel.tensors["b"][0].copy_(b)
            kernel.launch()
            kernel.synchronize()
        except (BuildError, CandidateError, LaunchError, DeviceError) as error:
            print(f"  {name}: {error}")
            fine = False
            continue
        difference = (kernel.tensors["c"][0].float() - want.float()).norm() / want.float().norm()
        if not float(difference) < ERROR_LIMIT:  # so that NaN is wrong too
            print(f"  {name}: WRONG, off by {float(difference):.3g}")
            fine = False
            continue
        entry = captured(name, kernel.launch, us)
        entry.kernel = kernel  # its memory must outlive the graph
        entries.append(entry)
    for turn in range(turns + 2):
        for entry in entries:
            us = sample(entry)
            if turn >= 2:  # the first two warm up
                entry.samples.append(us)
    best = statistics.median(entries[0].samples)
    print(shape)
    for entry in sorted(entries, key=lambda e: statistics.median(e.samples)):
        us = statistics.median(entry.samples)
        rate = 2e-6 * m * n * k / us
        print(f"  {us:9.2f} us {rate:6.0f} TFLOP/s {us / best:6.3f} of cuBLAS  {entry.name}")
    return fine


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python3 -m benchmarks.gpu_gemm", description=__doc__)
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK,... (default: %(default)s)")
    parser.add_argument("--knobs", default="", help="NAME=VALUE,VALUE;... (default: the kernel's)")
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("there is no GPU here", file=sys.stderr)
        return 1
    settings = combinations(given.knobs)
    results = [compare(shape, settings, given.turns) for shape in given.shapes.split(",")]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
