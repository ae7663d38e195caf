"""What the candidate is compared with, on a worker: PyTorch + NCCL, eager and in a CUDA graph.

Both call the problem's reference on the sets by turns, as the candidate does. The judge keeps the
clock; only latencies are measured here, by device events.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pk_runtime.gpu.driver import Event, Stream
from sandbox.gpu.case import Case
from sandbox.gpu.device import Helpers
from sandbox.gpu.serve import Refused

_MEET_NS = 2_000_000_000
_WARM_UP = 3


class Meeting:
    """All ranks meet on the device: the judge's helpers and the memory of every rank."""

    def __init__(self, helpers: Helpers, counters: Sequence[int], rank: int) -> None:
        self._helpers, self._counters, self._rank = helpers, counters, rank

    def hold(self, stream: int) -> None:
        """Queues a meeting."""
        self._helpers.meet(stream, self._counters, self._rank, _MEET_NS)


class Baseline:
    """The reference of one case, ready to be timed."""

    def __init__(self, case: Case, meeting: Meeting | None) -> None:
        self._case, self._meeting = case, meeting
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None
        if case.device.type == "cuda":
            self._stream = torch.cuda.Stream(case.device)  # type: ignore[no-untyped-call]
        for number in range(_WARM_UP):
            self._on_stream(lambda n=number: self._call(n % len(case.inputs)))  # type: ignore[misc]
        case.synchronize()

    def capture(self, order: Sequence[int]) -> None:
        """Captures the calls into a graph. Refused if PyTorch cannot, with its reason."""
        self._graph = self._captured(lambda: [self._call(number) for number in order])

    def run(self, kind: str, order: Sequence[int], times: int) -> None:
        """`times` replays of the graph, or of the eager calls of `order`; returns at the end."""
        if kind == "graph":
            if self._graph is None:
                raise Refused("there is no graph of the baseline")
            for _ in range(times):
                self._on_stream(self._graph.replay)
        else:
            for _ in range(times):
                self._on_stream(lambda: [self._call(number) for number in order])
        self._case.synchronize()

    def latencies_us(self, kind: str, order: Sequence[int]) -> list[float]:
        """Each call after a meeting of all ranks; microseconds from its release to the end."""
        if self._stream is None:
            return [self._host_latency_us(number) for number in order]
        starts, ends = ([Event() for _ in order] for _ in range(2))
        external = kind == "graph"
        # The driver's stream class only lends its handle here.
        stream = cast(Stream, _Handle(self._stream.cuda_stream))

        def calls() -> None:
            for index, number in enumerate(order):
                if self._meeting is not None:
                    self._meeting.hold(stream.handle)
                starts[index].record(stream, external=external)
                self._call(number)
                ends[index].record(stream, external=external)

        try:
            if external:
                graph = self._captured(calls)
                self._on_stream(graph.replay)  # the first one loads it
                self._case.synchronize()
                self._on_stream(graph.replay)
            else:
                self._on_stream(calls)
            self._case.synchronize()
            return [end.elapsed_ms(start) * 1e3 for start, end in zip(starts, ends, strict=True)]
        finally:
            for event in (*starts, *ends):
                event.close()

    def _captured(self, calls: Callable[[], object]) -> torch.cuda.CUDAGraph:
        if self._stream is None:
            raise Refused("there are no graphs on this device")
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                calls()
        except RuntimeError as error:
            raise Refused(f"PyTorch cannot capture the reference: {error}"[:1000]) from None
        return graph

    def _call(self, number: int) -> dict[str, Tensor]:
        case = self._case
        with torch.no_grad():
            return case.problem.reference(case.group, **case.inputs[number])

    def _on_stream(self, action: Callable[[], object]) -> None:
        if self._stream is None:
            action()
            return
        with torch.cuda.stream(self._stream):
            action()

    def _host_latency_us(self, number: int) -> float:
        start = time.perf_counter()
        self._call(number)
        return (time.perf_counter() - start) * 1e6


class _Handle:
    def __init__(self, handle: int) -> None:
        self.handle = handle


def healthy(case_device: torch.device, group: Any) -> str | None:
    """A small matrix product and an exchange with every peer; what is wrong, or None."""
    import torch.distributed as dist

    size, world, rank = 256, group.size(), group.rank()
    ones = torch.ones(size, size, device=case_device)
    if not bool((ones @ ones == size).all()):
        return "a matrix product is wrong"
    own = torch.arange(1 << 16, device=case_device, dtype=torch.int32) + rank
    everyone = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(everyone, own, group=group)
    for peer, got in enumerate(everyone):
        if not torch.equal(got - peer + rank, own):
            return f"what comes from GPU {peer} is wrong"
    return None
