"""Kernels on all GPUs from one process: set up, compared with the exact result, timed as graphs."""

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.sweep_process import GEMM_ALONE, Job
from pk_runtime.gpu.one_process import DeviceError, OneProcess
from problems.contract import Problem
from problems.registry import get

SAMPLE_US = 6000.0  # GPU time of one sample
MAX_LAUNCHES, MIN_LAUNCHES = 200, 4
ALIGN_CYCLES = 3_000_000  # about 1.5 ms in which the host enqueues a sample on every GPU
FREE_BYTES = 24 << 30  # what stays free on every GPU
MAX_GPUS = 8


class DeviceLost(RuntimeError):  # noqa: N818  a state, not a mistake
    """A kernel gave up; the CUDA contexts of this process are of no more use."""


@dataclass
class Entry:
    """One thing to time. `launch` starts it once on the current stream of every GPU."""

    knobs: str
    blocks: int
    result: str
    launch: Callable[[], None]
    synchronize: Callable[[], None]
    tensors: dict[str, list[Tensor]] = field(default_factory=dict)
    graphs: list[torch.cuda.CUDAGraph] = field(default_factory=list)
    launches: int = 0


class Session:
    """The GPUs, the problem's inputs on each of them, and the exact result."""

    def __init__(self, job: Job) -> None:
        self.world_size = job.world_size or max(1, min(torch.cuda.device_count(), MAX_GPUS))
        self._problem: Problem = get(job.problem)
        self._dims, self._timeout_s, self._eager = job.dims, job.timeout_s, job.eager
        if not 1 <= self.world_size <= torch.cuda.device_count():
            have = torch.cuda.device_count()
            raise ValueError(f"{self.world_size} ranks need as many GPUs, and there are {have}")
        if not self._problem.divides(job.dims, self.world_size):
            letters = ", ".join(self._problem.sharded)
            raise ValueError(f"{letters} must be multiples of the {self.world_size} GPUs")
        self.inputs = [self._draw(rank) for rank in range(self.world_size)]
        self._golden = self._exact()
        self._streams = [torch.cuda.Stream(rank) for rank in range(self.world_size)]  # type: ignore[no-untyped-call]
        for rank in range(self.world_size):
            with torch.cuda.device(rank):
                _sleep(1000)  # loads its kernel before anything waits behind it

    def has_room(self) -> bool:
        """Whether another combination fits beside those that are open."""
        free = min(torch.cuda.mem_get_info(rank)[0] for rank in range(self.world_size))
        return free > FREE_BYTES

    def open(self, knobs: str, library: Path) -> Entry:
        """Sets a kernel up, compares its result and makes its graphs; DeviceLost if it gives up."""
        if knobs == GEMM_ALONE:
            return self._ready(self._gemm_alone())
        kernel = OneProcess(
            library,
            {n: s.shape for n, s in self._specs(inputs=True).items()},
            {n: s.shape for n, s in self._specs(inputs=False).items()},
            world_size=self.world_size,
            dtype=self._problem.dtype,
            timeout_s=self._timeout_s,
        )
        entry = Entry(knobs, kernel.blocks, "", kernel.launch, kernel.synchronize, kernel.tensors)
        for rank, tensors in enumerate(self.inputs):
            for name, value in tensors.items():
                kernel.tensors[name][rank].copy_(value)
        entry.launch = lambda: self._on_streams(kernel.launch)
        self._synchronize()
        for _ in range(3):
            entry.launch()
        self._synchronize(entry)
        entry.result = self.check(entry)
        return self._ready(entry)

    def close(self, entry: Entry) -> None:
        """Gives the memory of an entry back."""
        entry.graphs.clear()
        entry.tensors.clear()
        entry.launch = entry.synchronize = lambda: None
        gc.collect()  # a kernel and its callbacks refer to each other
        torch.cuda.empty_cache()

    def check(self, entry: Entry) -> str:
        """ "ok", or what is wrong with the outputs of two launches into poisoned memory."""
        if not entry.tensors:
            return "ok"
        for name in self._problem.output_names:
            for out in entry.tensors[name]:
                out.fill_(float("nan"))
        self._synchronize()
        entry.launch()
        entry.launch()
        self._synchronize(entry)
        if self._golden is None:
            return "unchecked"
        for rank, want in enumerate(self._golden):
            for name, exact in want.items():
                got = entry.tensors[name][rank]
                if self._problem.tolerance == "T0":
                    if not torch.equal(got, exact.to(got.dtype)):
                        return f"WRONG r{rank}"
                    continue
                if not relative_error(got, exact) < ERROR_LIMIT:  # so that NaN is wrong too
                    return f"WRONG r{rank}"
        return "ok"

    def time_us(self, entry: Entry) -> float:
        """One sample: all GPUs start together, run the graph; the longest of them, per launch.

        A kernel launched just before the start event lines the ranks up, if it has a barrier.
        """
        for rank, stream in enumerate(self._streams):
            with torch.cuda.device(rank), torch.cuda.stream(stream):
                _sleep(ALIGN_CYCLES)
        entry.launch()
        starts = self._events()
        if entry.graphs:
            for rank, stream in enumerate(self._streams):
                with torch.cuda.device(rank), torch.cuda.stream(stream):
                    entry.graphs[rank].replay()
        else:
            for _ in range(entry.launches):
                entry.launch()
        pairs = zip(starts, self._events(), strict=True)
        self._synchronize(entry)
        return max(float(a.elapsed_time(b)) for a, b in pairs) * 1e3 / entry.launches

    def _ready(self, entry: Entry) -> Entry:
        """Graphs of so many launches that a sample lasts long enough."""
        entry.result = entry.result or "ok"
        self._capture(entry, MIN_LAUNCHES)
        us = statistics.median(self.time_us(entry) for _ in range(3))
        self._capture(entry, min(MAX_LAUNCHES, max(MIN_LAUNCHES, round(SAMPLE_US / us))))
        self.time_us(entry)
        return entry

    def _events(self) -> list[torch.cuda.Event]:
        """An event now in every GPU's stream."""
        events = []
        for rank, stream in enumerate(self._streams):
            with torch.cuda.device(rank):
                event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                event.record(stream)
                events.append(event)
        return events

    def _capture(self, entry: Entry, launches: int) -> None:
        """One graph per GPU, captured side by side, because one call launches on all of them.

        An eager session only takes note of the number.
        """
        self._synchronize()
        entry.launches = launches
        if self._eager:
            return
        graphs = [torch.cuda.CUDAGraph() for _ in self._streams]
        for rank, stream in enumerate(self._streams):
            with torch.cuda.device(rank), torch.cuda.stream(stream):
                graphs[rank].capture_begin(capture_error_mode="relaxed")
        for _ in range(launches):
            entry.launch()
        for rank, stream in enumerate(self._streams):
            with torch.cuda.device(rank), torch.cuda.stream(stream):
                graphs[rank].capture_end()
        entry.graphs = graphs

    def _on_streams(self, launch: Callable[[], None]) -> None:
        """Calls `launch` with this session's stream as the current one of every GPU.

        Entering a stream sets the current stream of its own device, and leaving restores it.
        """
        before = [torch.cuda.current_stream(rank) for rank in range(self.world_size)]
        device = torch.cuda.current_device()
        for stream in self._streams:
            torch.cuda.set_stream(stream)
        try:
            launch()
        finally:
            for stream in before:
                torch.cuda.set_stream(stream)
            torch.cuda.set_device(device)

    def _synchronize(self, entry: Entry | None = None) -> None:
        """Waits for all GPUs. DeviceLost if a kernel gave up, with the reports of the entry's."""
        try:
            if entry is not None:
                entry.synchronize()
            for rank in range(self.world_size):
                torch.cuda.synchronize(rank)
        except (RuntimeError, DeviceError) as error:
            raise DeviceLost(str(error)) from error

    def _specs(self, *, inputs: bool) -> dict[str, Any]:
        make = self._problem.input_specs if inputs else self._problem.output_specs
        return dict(make(self._dims, self.world_size))

    def _draw(self, rank: int) -> dict[str, Tensor]:
        """Inputs of the problem's distribution, drawn on the GPU: a CPU takes seconds for them."""
        generator = torch.Generator(f"cuda:{rank}")
        drawn = {}
        for number, (name, spec) in enumerate(self._specs(inputs=True).items()):
            replicated = name in self._problem.replicated
            generator.manual_seed(1000 * number + (0 if replicated else rank + 1))
            std = self._problem.input_std(name, self._dims, self.world_size)
            values = torch.randn(spec.shape, device=f"cuda:{rank}", generator=generator)
            drawn[name] = values.mul_(std).to(spec.dtype)
        return drawn

    def _exact(self) -> list[dict[str, Tensor]] | None:
        """The golden results of all ranks, each on its GPU; None if they cannot be had there."""
        gathered = [{n: t.to("cuda:0") for n, t in rank.items()} for rank in self.inputs]
        try:
            results = self._problem.golden(gathered)
        except (RuntimeError, TypeError, ValueError) as error:
            print(f"  the results stay unchecked: {error}", flush=True)
            torch.cuda.empty_cache()
            return None
        kept = [
            {name: exact.float().to(f"cuda:{rank}") for name, exact in result.items()}
            for rank, result in enumerate(results)
        ]
        torch.cuda.empty_cache()
        return kept

    def _gemm_alone(self) -> Entry:
        work = self._problem.baseline(self._dims, self.world_size).gemm
        if work is None:
            raise ValueError("the problem has no GEMM")
        m, n, k = work
        operands = []
        for rank in range(self.world_size):
            made = [
                torch.randn(shape, device=f"cuda:{rank}").to(self._problem.dtype)
                for shape in ((m, k), (k, n))
            ]
            operands.append((*made, torch.empty(m, n, dtype=made[0].dtype, device=made[0].device)))

        def launch() -> None:
            for rank, (a, b, c) in enumerate(operands):
                with torch.cuda.device(rank), torch.cuda.stream(self._streams[rank]):
                    torch.matmul(a, b, out=c)

        entry = Entry(GEMM_ALONE, 0, "ok", launch, lambda: None)
        launch()
        self._synchronize()
        return entry


ERROR_LIMIT = 5e-3  # bf16 rounding gives about 2e-3; one lost tile of some thousand gives more


def relative_error(got: Tensor, exact: Tensor) -> float:
    """The error's norm over the exact result's; NaN if anything is NaN."""
    difference = got.float() - exact
    return float(difference.norm() / exact.norm().clamp_min(1e-30))


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
