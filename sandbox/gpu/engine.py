"""A runner's engine on a GPU: maps memory, binds the kernel, launches. Without torch, untrusted."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pk_runtime.gpu.binding import Binding, Launch, LaunchError, Needed, TensorView
from pk_runtime.gpu.cuda_api import DriverError
from pk_runtime.gpu.driver import (
    Event,
    Graph,
    Stream,
    copy,
    driver,
    fill,
    forget_persisting_l2,
)
from pk_runtime.gpu.memory import Allocation
from sandbox.gpu.arena import DTYPES, POISON, Arena
from sandbox.gpu.device import Helpers
from sandbox.gpu.serve import Refused, close_files, number, text

# The judge stops a rank long before; this only ends a process that nobody watches any more.
_SYNC_S = 300.0
_MEET_NS = 2_000_000_000


@dataclass
class _Case:
    world: int
    arena: Arena
    outputs: frozenset[str]
    memory: list[Allocation]
    needed: list[Needed] = field(default_factory=list)
    symmetric: list[Allocation] = field(default_factory=list)
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    binding: Binding | None = None
    launches: list[Launch] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)

    def views(self, number: int) -> dict[str, list[TensorView]]:
        """Set `number` as every rank has it, mapped into this process."""
        return {
            name: [
                TensorView(
                    base.address + place.offset,
                    DTYPES[place.spec.dtype][1],
                    place.planes,
                    place.rows,
                    place.cols,
                    place.pitch,
                    place.spec.shape,
                )
                for base in self.memory
            ]
            for name, place in self.arena.sets[number].items()
        }

    def address(self, kind: str, name: str, rank: int) -> int:
        """Where `rank`'s symmetric memory lies here."""
        return self.symmetric[rank].address + self.places[kind, name]


@dataclass
class _Graph:
    graph: Graph
    starts: list[Event]
    ends: list[Event]


class GpuEngine:
    """`sandbox.gpu.runner.Engine` on the GPU that `start` names."""

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}
        self._graphs: dict[str, _Graph] = {}
        self._binding: Binding | None = None

    def start(self, settings: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        """Opens the device, the judge's device helpers and the memory that meetings use."""
        self._rank = number(settings, "rank", 0, 63)
        self._device = number(settings, "device", 0, 63)
        self._library = Path(text(settings, "library"))
        self._timeout_s = number(settings, "timeout_ms", 1, 600_000) / 1e3
        with self._blamed():
            about = driver(self._device)
            nbytes = number(settings, "meeting_bytes", 1, 1 << 40)
            self._meeting = _receive_all(files, nbytes, self._device)
            self._helpers = Helpers(Path(text(settings, "helpers")))
            self._stream = Stream()
            # Loads the helpers, which could not be loaded while a graph is captured, and shows that
            # the ranks reach each other's memory.
            self._helpers.delay(self._stream.handle, 1000)
            self._meet(len(self._meeting))
            self._wait()
            return {"device": about.name, "uuid": about.uuid}

    def plan(
        self, case: str, world: int, arena: Arena, outputs: frozenset[str], files: tuple[int, ...]
    ) -> list[dict[str, Any]]:
        """Maps the arenas and asks the kernel's setup() what it needs."""
        with self._blamed():
            memory = _receive_all(files, arena.nbytes, self._device)
            made = _Case(world, arena, outputs, memory)
            self._cases[case] = made
            views = made.views(0)
            made.needed = Binding.plan(self._library, self._rank, world, views, outputs)
        return [{"kind": n.kind, "name": n.name, "nbytes": n.nbytes} for n in made.needed]

    def bind(self, case: str, offsets: Sequence[int], nbytes: int, files: tuple[int, ...]) -> int:
        """Maps the symmetric memory and makes the kernel's arguments of every set."""
        known = self._case(case)
        if len(offsets) != len(known.needed):
            close_files(files)
            raise Refused(f"{len(known.needed)} offsets are needed, not {len(offsets)}")
        known.places = {
            (need.kind, need.name): at for need, at in zip(known.needed, offsets, strict=True)
        }
        with self._blamed():
            if files:
                known.symmetric = _receive_all(files, nbytes, self._device)
            binding = Binding(
                self._library,
                self._rank,
                known.world,
                known.views(0),
                known.outputs,
                known.address,
                self._timeout_s,
            )
            known.binding, known.launches = binding, [binding]
            for number in range(1, len(known.arena.sets)):
                known.launches.append(binding.rebind(known.views(number)))
            return binding.most_blocks

    def ready(self, case: str, blocks: int) -> None:
        """Sets the number of blocks."""
        binding = self._case(case).binding
        if binding is None:
            raise Refused(f"case {case!r} is not bound")
        with self._blamed():
            binding.blocks = blocks

    def launch(
        self, case: str, sets: Sequence[int], delays_us: Sequence[float], sources: Sequence[int]
    ) -> None:
        """Queues delays and launches, then waits for all of them."""
        known = self._case(case)
        with self._blamed(known):
            for index, (chosen, delay_us) in enumerate(zip(sets, delays_us, strict=True)):
                if delay_us > 0:
                    self._helpers.delay(self._stream.handle, int(delay_us * 1e3))
                if sources:
                    self._bring(known, chosen, sources[index])
                    self._clear(known, chosen)
                known.launches[chosen].launch(self._stream.handle)
            self._wait()

    def capture(
        self, case: str, graph: str, sets: Sequence[int], *, meet: bool, clear: bool, launch: bool
    ) -> None:
        """Captures the launches into a graph."""
        known = self._case(case)
        with self._blamed(known):
            starts = [Event() for _ in sets] if meet else []
            ends = [Event() for _ in sets] if meet else []

            def work() -> None:
                for index, chosen in enumerate(sets):
                    if meet:
                        self._meet(known.world)
                        starts[index].record(self._stream, external=True)
                    if clear:
                        self._clear(known, chosen)
                    if launch:
                        known.launches[chosen].launch(self._stream.handle)
                    if meet:
                        ends[index].record(self._stream, external=True)

            self._graphs[graph] = _Graph(Graph(self._stream, work), starts, ends)
            known.graphs.append(graph)

    def replay(self, graph: str, times: int) -> list[float]:
        """Starts every replay at once and waits for the last."""
        known = self._graphs.get(graph)
        if known is None:
            raise Refused(f"there is no graph {graph!r}")
        case = next(case for case in self._cases.values() if graph in case.graphs)
        with self._blamed(case):
            forget_persisting_l2()  # what an earlier run keeps there would be no cold input
            for _ in range(times):
                known.graph.launch(self._stream)
            self._wait()
            return [
                end.elapsed_ms(start) * 1e3
                for start, end in zip(known.starts, known.ends, strict=True)
            ]

    def drop(self, case: str) -> None:
        """Frees a case."""
        known = self._cases.pop(case, None)
        if known is None:
            return
        with self._blamed(known):
            for name in known.graphs:
                self._close_graph(self._graphs.pop(name))
            if known.binding is not None:
                known.binding.close()
            for allocation in (*known.memory, *known.symmetric):
                allocation.close()

    def _case(self, case: str) -> _Case:
        known = self._cases.get(case)
        if known is None:
            raise Refused(f"there is no case {case!r}")
        return known

    def _bring(self, case: _Case, chosen: int, source: int) -> None:
        """Copies this rank's inputs of a set from another one, in order of the stream."""
        own, sets = case.memory[self._rank].address, case.arena.sets
        for name, place in sets[chosen].items():
            if name not in case.outputs:
                copy(
                    own + place.offset, own + sets[source][name].offset, place.nbytes, self._stream
                )

    def _clear(self, case: _Case, chosen: int) -> None:
        """Poisons this rank's outputs of a set, in order of the stream."""
        own = case.memory[self._rank].address
        for name in case.outputs:
            place = case.arena.sets[chosen][name]
            fill(own + place.offset, POISON * 0x01010101, place.nbytes, self._stream)

    def _close_graph(self, known: _Graph) -> None:
        known.graph.close()
        for event in (*known.starts, *known.ends):
            event.close()

    def _meet(self, world: int) -> None:
        counters = [allocation.address for allocation in self._meeting[:world]]
        self._helpers.meet(self._stream.handle, counters, self._rank, _MEET_NS)

    def _wait(self) -> None:
        """Waits without sleeping: the judge's clock runs until this rank answers."""
        deadline = time.monotonic() + _SYNC_S
        while not self._stream.done():
            if time.monotonic() > deadline:
                raise Refused("the device is still busy", code="TIMEOUT")

    @contextmanager
    def _blamed(self, case: _Case | None = None) -> Iterator[None]:
        """Turns what driver and kernel refuse into an answer with the kernel's records."""
        try:
            yield
        except LaunchError as error:
            raise Refused(str(error), refused=True, reports=_reports(case)) from None
        except (DriverError, OSError) as error:
            raise Refused(str(error), reports=_reports(case)) from None


def _reports(case: _Case | None) -> list[str]:
    if case is None or case.binding is None:
        return []
    try:
        return case.binding.failures()[:64]
    except (LaunchError, DriverError, ValueError):
        return []


def _receive_all(files: Sequence[int], nbytes: int, device: int) -> list[Allocation]:
    """Maps one allocation per file; closes all files, whatever happens."""
    received: list[Allocation] = []
    try:
        for descriptor in files:
            received.append(Allocation.receive(descriptor, nbytes, device))
    except BaseException:
        close_files(files[len(received) + 1 :])
        for allocation in received:
            allocation.close()
        raise
    return received
