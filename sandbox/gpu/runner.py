"""One rank of a candidate: the untrusted process, `python -S -m sandbox.gpu.runner --channel 3`.

It gets the built kernel, the memory of all ranks as file descriptors and commands over its only
channel; it knows no seed, no reference and no verdict, and whatever it answers is checked. It
starts without torch, in about a tenth of a second.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pk_runtime.gpu.channel import adopt
from sandbox.gpu.arena import Arena, ArenaError, lay_out, specs_from_json
from sandbox.gpu.serve import Refused, Reply, close_files, number, numbers, serve, text

IDLE_S = 600.0
MOST_SETS = 256


class Engine(Protocol):
    """What runs launches: the GPU, or in tests something that stands for it."""

    def start(self, settings: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        """Opens the device, the library and the meeting memory of all ranks (`files`)."""
        ...

    def plan(
        self, case: str, world: int, arena: Arena, outputs: frozenset[str], files: tuple[int, ...]
    ) -> list[dict[str, Any]]:
        """Maps the arenas of all ranks (`files`); the symmetric memory that the kernel wants."""
        ...

    def bind(self, case: str, offsets: Sequence[int], nbytes: int, files: tuple[int, ...]) -> int:
        """Binds every set; `files` is all ranks' symmetric memory, item i at `offsets[i]`.

        Returns how many blocks the kernel can have.
        """
        ...

    def ready(self, case: str, blocks: int) -> None:
        """Sets the number of blocks that all ranks agreed on."""
        ...

    def launch(
        self, case: str, sets: Sequence[int], delays_us: Sequence[float], sources: Sequence[int]
    ) -> None:
        """Launches the sets in order, each after its delay on the device, and waits for all.

        Where there are `sources`, this rank's inputs are copied from those sets, and its outputs
        cleared, between delay and launch.
        """
        ...

    def capture(
        self, case: str, graph: str, sets: Sequence[int], *, meet: bool, clear: bool, launch: bool
    ) -> None:
        """Captures the launches; `meet`: each after a meeting of all ranks, between two events;
        `clear`: each after its outputs were cleared; without `launch` that alone."""
        ...

    def replay(self, graph: str, times: int) -> list[float]:
        """Replays a graph and waits for it; microseconds of each launch of the last replay."""
        ...

    def drop(self, case: str) -> None:
        """Forgets a case, its graphs and its memory."""
        ...


class Runner:
    """Checks commands and hands them to an engine; see `Engine` for what they mean."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle(self, name: str, body: Mapping[str, Any], files: tuple[int, ...]) -> Reply:
        """Does one command; Refused with the kernel's records if the device failed."""
        action = getattr(self, f"_do_{name}", None)
        if action is None:
            close_files(files)
            raise Refused(f"a runner knows no command {name!r}")
        answer: dict[str, Any] = action(body, files)
        return Reply(answer)

    def _do_start(self, body: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        return self._engine.start(body, files)

    def _do_plan(self, body: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        world = number(body, "world", 1, 64)
        sets = number(body, "sets", 1, MOST_SETS)
        if len(files) != world:
            close_files(files)
            raise Refused(f"{world} ranks need {world} arenas, not {len(files)}")
        try:
            inputs, outputs = (specs_from_json(body.get(side)) for side in ("inputs", "outputs"))
            arena = lay_out(inputs, outputs, sets)
        except ArenaError as error:
            close_files(files)
            raise Refused(str(error)) from None
        case = text(body, "case")
        return {"needed": self._engine.plan(case, world, arena, frozenset(outputs), files)}

    def _do_bind(self, body: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        offsets = numbers(body, "offsets")
        nbytes = number(body, "nbytes", 0, 1 << 40)
        return {"blocks": self._engine.bind(text(body, "case"), offsets, nbytes, files)}

    def _do_ready(self, body: Mapping[str, Any], _files: tuple[int, ...]) -> dict[str, Any]:
        self._engine.ready(text(body, "case"), number(body, "blocks", 1, 1 << 16))
        return {}

    def _do_launch(self, body: Mapping[str, Any], _files: tuple[int, ...]) -> dict[str, Any]:
        sets = numbers(body, "sets")
        delays = [float(delay) for delay in body.get("delays_us") or [0.0] * len(sets)]
        sources = numbers(body, "sources") if "sources" in body else []
        if len(delays) != len(sets) or len(sources) not in (0, len(sets)):
            raise Refused(f"{len(sets)} launches need as many delays and sources, or none")
        self._engine.launch(text(body, "case"), sets, delays, sources)
        return {}

    def _do_capture(self, body: Mapping[str, Any], _files: tuple[int, ...]) -> dict[str, Any]:
        flags = {name: body.get(name) is True for name in ("meet", "clear", "launch")}
        graph = text(body, "graph")
        self._engine.capture(text(body, "case"), graph, numbers(body, "sets"), **flags)
        return {}

    def _do_replay(self, body: Mapping[str, Any], _files: tuple[int, ...]) -> dict[str, Any]:
        times = self._engine.replay(text(body, "graph"), number(body, "times", 1, 1 << 20))
        return {"times_us": times}

    def _do_drop(self, body: Mapping[str, Any], _files: tuple[int, ...]) -> dict[str, Any]:
        self._engine.drop(text(body, "case"))
        return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves commands until the judge is done; 2 for wrong arguments."""
    parser = argparse.ArgumentParser(description="One rank of a candidate under judgement.")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel")
    chosen = parser.parse_args(arguments)
    try:
        channel = adopt(chosen.channel)
    except OSError as error:
        sys.stderr.write(f"descriptor {chosen.channel} is not a channel: {error}\n")
        return 2
    # Only now, so that wrong arguments are told on machines without a driver too.
    from sandbox.gpu.engine import GpuEngine

    serve(channel, Runner(GpuEngine()), idle_s=IDLE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
