"""A runner without a GPU: an all-to-all on memory of the host, right or wrong as its library says.

Started like the real one, it serves the same commands; its "library" is a JSON file: {"does": ...}.
"""

import json
import mmap
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pk_runtime.gpu.channel import adopt
from sandbox.gpu.arena import POISON, Arena
from sandbox.gpu.runner import Runner
from sandbox.gpu.serve import Refused, serve

LAUNCH_S = 400e-6
POISON_ROW = bytes([POISON]) * 16
WAIT = (
    "rank 1 block 0 communicator (launch 3) waits for signal 'ready' slot 3: expected 4, seen 3, "
    "after 2 s"
)
FOLLOWS = "rank {rank} block 0 runtime (launch 3) waits for rank 1 to leave, after 2 s"


class StandIn:
    """`sandbox.gpu.runner.Engine` for all-to-all."""

    def __init__(self) -> None:
        self._cases: dict[str, tuple[int, Arena, list[mmap.mmap]]] = {}
        self._graphs: dict[str, tuple[str, Sequence[int], dict[str, bool]]] = {}
        self._launches = 0

    def start(self, settings: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        self._rank = int(settings["rank"])
        self._does = json.loads(Path(settings["library"]).read_text())["does"]
        for file in files:
            os.close(file)
        return {}

    def plan(
        self, case: str, world: int, arena: Arena, outputs: frozenset[str], files: tuple[int, ...]
    ) -> list[dict[str, Any]]:
        if self._does == "refuse":
            raise Refused("the kernel refuses these shapes: N must be even", refused=True)
        self._cases[case] = (world, arena, [mmap.mmap(file, arena.nbytes) for file in files])
        for file in files:
            os.close(file)
        wanted = self._rank + 1 if self._does == "disagree" else 1
        return [{"kind": "control", "name": "", "nbytes": 512 * wanted}]

    def bind(self, case: str, offsets: Sequence[int], nbytes: int, files: tuple[int, ...]) -> int:
        for file in files:
            os.close(file)
        return 132 - self._rank

    def ready(self, case: str, blocks: int) -> None:
        assert blocks <= 132 - self._rank

    def launch(
        self, case: str, sets: Sequence[int], delays_us: Sequence[float], sources: Sequence[int]
    ) -> None:
        time.sleep(sum(delays_us) * 1e-6)
        for chosen in sets:
            if sources:
                self._bring(case, chosen, sources[0])
            self._one(case, chosen, len(sets))

    def capture(self, case: str, graph: str, sets: Sequence[int], **how: bool) -> None:
        self._graphs[graph] = (case, sets, how)

    def replay(self, graph: str, times: int) -> list[float]:
        if graph not in self._graphs:
            raise Refused(f"there is no graph {graph!r}")
        case, sets, how = self._graphs[graph]
        meet = how["meet"]
        for chosen in sorted(set(sets)):
            if how["clear"]:
                self._clear(case, chosen)
            if how["launch"]:
                self._one(case, chosen, 1 if self._does != "wrong when timed" else -1)
        if not how["launch"]:
            return []
        if self._does == "die in a replay" and times > 1:
            os._exit(3)
        slower = 3 if self._does == "slower" else 1
        if self._does == "rest" and how["clear"]:
            slower = 20
        time.sleep(slower * LAUNCH_S * len(sets) * times)
        if self._does == "late work" and not meet and os.fork() == 0:
            for _ in range(200):
                time.sleep(0.005)
                self._one(case, 0, 1)
            os._exit(0)
        if not meet:
            return []
        return [10.0 if self._does == "forged latency" else LAUNCH_S * 1e6] * len(sets)

    def drop(self, case: str) -> None:
        self._cases.pop(case)

    def _bring(self, case: str, chosen: int, source: int) -> None:
        """Inputs from another set, then the meeting that makes them safe to read for peers."""
        world, arena, memory = self._cases[case]
        own, to, place = memory[self._rank], arena.sets[chosen]["x"], arena.sets[source]["x"]
        own[to.offset : to.offset + to.nbytes] = own[place.offset : place.offset + place.nbytes]
        end, deadline = to.offset + to.nbytes, time.monotonic() + 5.0
        while self._does != "early" and time.monotonic() < deadline:
            if all(memory[rank][end - 16 : end] != POISON_ROW for rank in range(world)):
                break

    def _clear(self, case: str, chosen: int) -> None:
        _, arena, memory = self._cases[case]
        y = arena.sets[chosen]["y"]
        memory[self._rank][y.offset : y.offset + y.nbytes] = bytes([POISON]) * y.nbytes

    def _one(self, case: str, chosen: int, burst: int) -> None:
        self._launches += 1
        self._misbehave(burst)
        world, arena, memory = self._cases[case]
        x, y = arena.sets[chosen]["x"], arena.sets[chosen]["y"]
        part = x.nbytes // world
        for source in range(world):
            taken = (source + 1) % world if self._does == "wrong" else source
            at = x.offset + self._rank * part
            data = memory[taken][at : at + part]
            if source == 0 and (
                (self._does == "race" and burst > 1)
                or (self._does == "wrong when timed" and burst < 0)
            ):
                data = bytes(part)
            memory[self._rank][y.offset + source * part : y.offset + (source + 1) * part] = data
        if self._does == "guard" and self._rank == 1:
            memory[1][y.offset - 3] = 0
        if self._does == "input" and self._rank == 1:
            memory[1][x.offset] ^= 1

    def _misbehave(self, burst: int) -> None:
        if self._does == "deadlock":
            time.sleep(0.1)
            told = WAIT if self._rank == 1 else FOLLOWS.format(rank=self._rank)
            raise Refused("cuStreamQuery: CUDA_ERROR_LAUNCH_FAILED", reports=[told])
        if self._does == "deadlock in a burst" and burst > 1:
            raise Refused("cuStreamQuery: CUDA_ERROR_LAUNCH_FAILED", reports=[WAIT])
        if self._does == "illegal address":
            if self._rank == 1:
                raise Refused("cuStreamQuery: CUDA_ERROR_ILLEGAL_ADDRESS: a kernel touched memory")
            raise Refused("x", reports=[FOLLOWS.format(rank=self._rank)])
        if self._does == "die" and self._rank == 1:
            sys.stderr.write("Segmentation fault\n")
            sys.stderr.flush()
            os._exit(3)
        if self._does == "hang" and self._rank == 1:
            time.sleep(600)


if __name__ == "__main__":
    serve(adopt(int(sys.argv[-1])), Runner(StandIn()), idle_s=60.0)
