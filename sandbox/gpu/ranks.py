"""One shape of one problem on all ranks: memory of the workers, mapped and bound by the runners."""

import os
import secrets
from collections.abc import Sequence
from typing import Any

import torch

from problems.contract import Tensors
from problems.description import Description, ShapeInfo
from sandbox.gpu.arena import specs_from_json
from sandbox.gpu.failures import Outcome, clean
from sandbox.gpu.group import START_S, GroupEnded, RunnerGroup
from sandbox.gpu.pool import GpuPool, WorkerFailed
from sandbox.gpu.serve import close_files

MOST_SYMMETRIC_BYTES = 16 << 30
_MOST_OBJECTS = 256
_ALIGNMENT = 4096
_BIND_S = 60.0
_FILL_S = 180.0
_LAUNCH_S = 10.0


class RanksCase:
    """A case on workers and runners. A context manager; raises GroupEnded and WorkerFailed.

    `draws` are the seeds of the sets; `on_device` lets the workers draw inputs on the GPU, which is
    faster and gives other values than the CPU.
    """

    def __init__(
        self,
        pool: GpuPool,
        runners: RunnerGroup,
        description: Description,
        shape: ShapeInfo,
        draws: Sequence[int],
        *,
        on_device: bool,
    ) -> None:
        self.shape, self.description = shape, description
        self.world = description.world_size
        self.draws = tuple(draws)
        self.scales = tuple(description.exponent(shape, draw) for draw in draws)
        self.key = f"{shape.name}-{self.world}-{secrets.token_hex(4)}"
        self._pool, self._runners = pool, runners
        self._open()
        try:
            fields = {"seeds": list(draws), "on_device": on_device}
            self.tell_workers("fill", fields, timeout_s=_FILL_S)
            self._bind()
        except BaseException:
            self._close_workers()
            raise

    def __enter__(self) -> "RanksCase":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._runners.ask("drop", {"case": self.key}, world=self.world, timeout_s=_BIND_S)
        self._close_workers()

    def tell_workers(
        self, command: str, fields: dict[str, Any] | None = None, *, timeout_s: float = 60.0
    ) -> list[dict[str, Any]]:
        """A command on this case to the workers of its ranks."""
        named = {"case": self.key, **(fields or {})}
        return self._pool.ask(command, named, world=self.world, timeout_s=timeout_s)

    def tell_runners(
        self, command: str, fields: dict[str, Any], *, timeout_s: float
    ) -> list[dict[str, Any]]:
        """A command on this case to the runners of its ranks."""
        named = {"case": self.key, **fields}
        return self._runners.ask(command, named, world=self.world, timeout_s=timeout_s)

    def launch(
        self,
        sets: Sequence[int],
        delays_us: Sequence[Sequence[float]] = (),
        sources: Sequence[int] = (),
    ) -> None:
        """Launches the sets in order; `delays_us[rank]` are delays on the device before each.

        With `sources` each rank's inputs come from those sets after the delay: see `withhold`.
        """
        total_s = max((sum(rank) for rank in delays_us), default=0.0) * 1e-6
        bodies: list[dict[str, Any]] = [
            {"case": self.key, "sets": list(sets), "sources": list(sources)}
            for _ in range(self.world)
        ]
        for body, delays in zip(bodies, delays_us, strict=bool(delays_us)):
            body["delays_us"] = list(delays)
        self._runners.ask("launch", bodies, world=self.world, timeout_s=_LAUNCH_S + total_s)

    def poison(self) -> None:
        """Restores inputs and poisons outputs of every set, on every rank."""
        self.tell_workers("poison")

    def withhold(self, number: int, keeper: int) -> None:
        """Leaves poison in the inputs of a set on every rank; set `keeper` has them until then."""
        self.tell_workers("withhold", {"set": number, "keeper": keeper})

    def verify(self, sets: Sequence[int], *, remember: bool = False) -> "Found":
        """What came out of the sets, on every rank."""
        fields = {"sets": list(sets), "remember": remember}
        return Found(self.tell_workers("verify", fields))

    def outputs(self, number: int) -> list[Tensors]:
        """The outputs of a set on every rank, on the CPU."""
        bodies, files = self._pool.lend(
            "fetch", {"case": self.key, "set": number}, world=self.world
        )
        try:
            return [
                {
                    name: self._read(file, name)
                    for name, file in zip(body["names"], each, strict=True)
                }
                for body, each in zip(bodies, files, strict=True)
            ]
        finally:
            close_files(descriptor for each in files for descriptor in each)

    def _read(self, descriptor: int, name: str) -> torch.Tensor:
        spec = self.shape.outputs[name]
        data = bytearray(os.fstat(descriptor).st_size)
        with os.fdopen(os.dup(descriptor), "rb", closefd=True) as file:
            file.seek(0)
            file.readinto(data)
        return torch.frombuffer(data, dtype=spec.dtype).reshape(spec.shape)

    def _open(self) -> None:
        fields = {
            "case": self.key,
            "problem": self.description.slug,
            "dims": dict(self.shape.dims),
            "world": self.world,
            "sets": len(self.draws),
        }
        layouts, files = self._pool.lend("open", fields, world=self.world)
        arenas = [descriptor for each in files for descriptor in each]
        try:
            self._layout = layouts[0]
            if any(layout != layouts[0] for layout in layouts) or len(arenas) != self.world:
                raise WorkerFailed("the workers disagree about the layout of a case")
            specs_from_json(self._layout["inputs"])
            plan = {name: self._layout[name] for name in ("inputs", "outputs")}
            plan |= {"case": self.key, "world": self.world, "sets": len(self.draws)}
            answers = self._runners.ask(
                "plan", plan, world=self.world, timeout_s=_BIND_S, files=arenas
            )
        except BaseException:
            self._close_workers()
            raise
        finally:
            close_files(arenas)
        self._needed = [answer.get("needed") for answer in answers]

    def _bind(self) -> None:
        offsets, total = symmetric_layout(self._needed)
        files: list[int] = []
        if total:
            lent = self._pool.lend("lend", {"key": self.key, "nbytes": total}, world=self.world)[1]
            files = [descriptor for each in lent for descriptor in each]
        try:
            fields = {"offsets": offsets, "nbytes": total}
            named = {"case": self.key, **fields}
            answers = self._runners.ask(
                "bind", named, world=self.world, timeout_s=_BIND_S, files=files
            )
        finally:
            close_files(files)
        counts = [answer.get("blocks") for answer in answers]
        wrong = next((r for r, n in enumerate(counts) if type(n) is not int or n < 1), None)
        if wrong is not None:
            raise _nonsense(wrong, "bind", "it reports no number of blocks")
        self.blocks = min(n for n in counts if isinstance(n, int))
        self.tell_runners("ready", {"blocks": self.blocks}, timeout_s=START_S)

    def _close_workers(self) -> None:
        try:
            self._pool.ask("close", {"case": self.key}, world=self.world)
            self._pool.ask("free", {"key": self.key}, world=self.world)
        except WorkerFailed:
            return  # they are gone, and their memory with them; the next candidate starts new ones


class Found:
    """What all ranks' workers found in the outputs of some sets."""

    def __init__(self, bodies: Sequence[dict[str, Any]]) -> None:
        self.wrong = sorted(
            {(int(number), rank, str(name)) for rank, body in enumerate(bodies)
             for number, name in body["wrong"]}
        )  # fmt: skip
        self.changed = [
            (rank, str(name)) for rank, body in enumerate(bodies) for _, name in body["changed"]
        ]
        self.guards = [(rank, int(at)) for rank, body in enumerate(bodies) for at in body["guards"]]
        self.differs = sorted({int(n) for body in bodies for n in body["differs"]})
        self.errors: dict[str, dict[str, float]] = {}
        for body in bodies:
            for name, (error, limit) in body["errors"].items():
                known = self.errors.get(name)
                if known is None or error < 0 or error > known["max_error"] >= 0:
                    self.errors[name] = {"max_error": error, "max_limit": limit}

    @property
    def ok(self) -> bool:
        """Whether every output is right and nothing else was touched."""
        return not (self.wrong or self.changed or self.guards)


def symmetric_layout(needed: Sequence[object]) -> tuple[list[int], int]:
    """Offsets of the objects that every rank's kernel wants, and their sum in bytes.

    GroupEnded if a rank wants something else than the others, or too much: it comes from runners.
    """
    for rank, items in enumerate(needed):
        if not isinstance(items, list) or len(items) > _MOST_OBJECTS:
            raise _nonsense(rank, "plan", "it asks for no list of symmetric memory")
        for item in items:
            size = item.get("nbytes") if isinstance(item, dict) else None
            if type(size) is not int or not 0 < size <= MOST_SYMMETRIC_BYTES:
                what = clean(item.get("name") if isinstance(item, dict) else item)[:80]
                limit = MOST_SYMMETRIC_BYTES >> 30
                raise _nonsense(rank, "plan", f"symmetric memory {what!r} must have 1 byte to "
                                              f"{limit} GiB, not {clean(size)}")  # fmt: skip
        if items != needed[0]:
            raise _nonsense(rank, "plan", "setup() asks for other symmetric memory than on rank 0")
    offsets, total = [], 0
    first = needed[0]
    assert isinstance(first, list)
    for item in first:
        offsets.append(total)
        total += -(-item["nbytes"] // _ALIGNMENT) * _ALIGNMENT
    if total > MOST_SYMMETRIC_BYTES:
        raise _nonsense(0, "plan", f"its symmetric memory takes {total} bytes on every rank; "
                                   f"at most {MOST_SYMMETRIC_BYTES} are given")  # fmt: skip
    return offsets, total


def _nonsense(rank: int, command: str, text: str) -> GroupEnded:
    return GroupEnded(command, [Outcome(rank, "failed", f"rank {rank}: {text}", refused=True)])
