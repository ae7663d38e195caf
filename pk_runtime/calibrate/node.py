"""The GPUs of this machine, driven by one process: memory that all of them reach, and timing."""

import ctypes as c
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from pk_runtime.calibrate.probes import MAX_PEERS, ProbeError, Probes

GIB = 1 << 30
WINDOW = 64 << 20  # bytes that a transfer between two GPUs walks through; more than an L2 holds
SLOT_WORDS = 32
LEAD_NS = 150_000  # per GPU: how long the GPUs are kept waiting while the host enqueues a sample

Start = Callable[[int], None]  # enqueues one GPU's work; the argument is its stream's handle


@dataclass(frozen=True)
class Sample:
    """Microseconds of the slowest GPU: median, minimum and maximum over the repeats."""

    us: float
    us_min: float
    us_max: float

    def per(self, count: int) -> "Sample":
        """The time of one of `count` equal parts."""
        return Sample(self.us / count, self.us_min / count, self.us_max / count)


class Node:
    """`world` GPUs with peer access between all pairs; ProbeError if a pair has none.

    Every GPU has 1 GiB to read from (`source`) and 1 GiB to write to (`target`), random bytes.
    """

    def __init__(self, probes: Probes, world: int, repeats: int) -> None:
        self.probes, self.world, self.repeats = probes, world, repeats
        found = torch.cuda.device_count()
        if not 1 <= world <= min(found, MAX_PEERS):
            raise ProbeError(f"asked for {world} GPUs; there are {found}, and {MAX_PEERS} at most")
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.devices = range(world)
        self.streams = [torch.cuda.Stream(d) for d in self.devices]  # type: ignore[no-untyped-call]
        self._enable_peers()
        self._memory = [_random_bytes(2 * GIB, d) for d in self.devices]
        self._slots = [
            torch.zeros(SLOT_WORDS * MAX_PEERS, dtype=torch.int32, device=f"cuda:{d}")
            for d in self.devices
        ]
        status = c.c_void_p()
        probes.call("allocate_status", c.byref(status))
        assert status.value is not None
        self.status: int = status.value
        self.epoch = 0  # every value that a flag of this node has had is at most this
        self.barrier_rounds(0, self.devices)  # loads the kernel before anybody waits in it
        self.synchronize()

    def source(self, device: int) -> int:
        """Address of the GiB that transfers read."""
        return self._memory[device].data_ptr()

    def target(self, device: int) -> int:
        """Address of the GiB that transfers write."""
        return self._memory[device].data_ptr() + GIB

    def window(self, device: int, peer: int) -> int:
        """Where bytes from or for `peer` lie in a GPU's memory: WINDOW bytes of its own."""
        return self.target(device) + peer * WINDOW

    def stream(self, device: int) -> int:
        """The handle of the stream that this node uses on a GPU."""
        return int(self.streams[device].cuda_stream)

    def sample_us(self, start: Mapping[int, Start], *, queued: bool = True) -> float:
        """Runs one piece of work on every GPU named, all starting together; the slowest one's us.

        The GPUs spin while the host enqueues, then meet in a barrier, then the clock starts. If not
        `queued`, they do not spin, so that the host's part shows.
        """
        for device in start if queued else ():
            lead = LEAD_NS * (len(start) + 1)
            self.probes.on(device, "spin", lead, self.stream(device))
        if len(start) > 1:
            self.barrier_rounds(1, list(start))
        pairs = []
        for device, enqueue in start.items():
            begin, end = _event(), _event()
            with torch.cuda.device(device):
                begin.record(self.streams[device])
                enqueue(self.stream(device))
                end.record(self.streams[device])
            pairs.append((begin, end))
        self.synchronize()
        return max(float(begin.elapsed_time(end)) for begin, end in pairs) * 1e3

    def sample(self, start: Mapping[int, Start], rounds: int = 0, *, queued: bool = True) -> Sample:
        """`sample_us` as often as this node repeats, after one run that does not count.

        `rounds` is how many values of the flags one run uses up (see `epoch`); `queued` is that of
        `sample_us`.
        """
        times = []
        for _ in range(self.repeats + 1):
            times.append(self.sample_us(start, queued=queued))
            self.epoch += rounds
        del times[0]
        return Sample(statistics.median(times), min(times), max(times))

    def barrier_rounds(self, rounds: int, devices: Sequence[int]) -> None:
        """Starts the in-kernel barrier, `rounds` times, on the GPUs named."""
        for rank, device in enumerate(devices):
            self.barrier(rounds, devices, rank)(self.stream(device))
        self.epoch += rounds

    def barrier(self, rounds: int, devices: Sequence[int], rank: int) -> Start:
        """One GPU's part of `rounds` barriers among the GPUs named; uses up as many flag values."""
        slots = (c.c_void_p * MAX_PEERS)(*(self._slots[d].data_ptr() for d in devices))
        device, world = devices[rank], len(devices)
        return lambda stream: self.probes.on(
            device, "barrier", slots, rank, world, self.epoch, rounds, self.status, stream
        )

    def synchronize(self) -> None:
        """Waits for all GPUs; ProbeError if a wait inside a probe ran out."""
        for device in self.devices:
            torch.cuda.synchronize(device)
        status = c.c_int32.from_address(self.status)
        if status.value:
            kind = {1: "a flag", 2: "an mbarrier"}.get(status.value, "something")
            status.value = 0
            raise ProbeError(f"a probe waited 2 s for {kind} that never came")

    def _enable_peers(self) -> None:
        for a in self.devices:
            for b in self.devices:
                if a == b:
                    continue
                if not torch.cuda.can_device_access_peer(a, b):
                    raise ProbeError(f"GPU {a} cannot reach the memory of GPU {b}")
                self.probes.on(a, "enable_peer", b)


def _random_bytes(count: int, device: int) -> torch.Tensor:
    data = torch.empty(count // 8, dtype=torch.int64, device=f"cuda:{device}")
    return data.random_()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
