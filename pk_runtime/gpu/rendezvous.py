"""W processes of one machine meet in a private folder; then each has a channel to every other.

The folder carries a random name, is readable by its owner alone, and is gone once all have met: no
fixed names, nothing left behind. What all do together is checked to be the same thing on every
rank, and ends at a deadline that names who is missing.
"""

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pk_runtime.gpu.channel import Channel, ChannelError, Listener, Message, connect

_PREFIX = "pkforge-"


class RendezvousError(RuntimeError):
    """The ranks did not all do the same in time: which rank, what it did instead."""


def new_run_folder() -> Path:
    """A new private folder with a random name, for one rendezvous."""
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


@dataclass(frozen=True)
class Answer:
    """What one rank said in a collective step: a JSON object, and files for this rank."""

    body: Mapping[str, Any]
    files: tuple[int, ...] = ()


class Rendezvous:
    """One rank's channels to all others. Collective: every rank calls the same methods in order."""

    def __init__(
        self, rank: int, world_size: int, channels: Mapping[int, Channel], deadline_s: float
    ) -> None:
        self.rank, self.world_size, self.deadline_s = rank, world_size, deadline_s
        self._channels = dict(channels)
        self._step = 0

    @staticmethod
    def join(folder: Path, rank: int, world_size: int, *, deadline_s: float) -> "Rendezvous":
        """Meets the other ranks in `folder` (see `new_run_folder`) and removes it.

        RendezvousError if a rank is missing at the deadline or is given twice.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not one of {world_size} ranks")
        _require_private(folder)
        deadline = time.monotonic() + deadline_s
        channels: dict[int, Channel] = {}
        listener = _listen(folder, rank)
        try:
            for other in range(rank):
                channels[other] = _call(folder, rank, other, deadline)
            while len(channels) < world_size - 1:
                missing = [r for r in range(rank + 1, world_size) if r not in channels]
                other, channel = _admit(listener, missing, deadline)
                channels[other] = channel
        except BaseException:
            for channel in channels.values():
                channel.close()
            raise
        finally:
            listener.close()
        met = Rendezvous(rank, world_size, channels, deadline_s)
        try:
            met.barrier("all have met")
        except BaseException:
            met.close()
            raise
        with contextlib.suppress(OSError):
            folder.rmdir()  # the last one of the ranks succeeds
        return met

    def exchange(
        self,
        what: str,
        body: Mapping[str, Any],
        files: Mapping[int, int] | None = None,
        expected: int = 0,
    ) -> list[Answer]:
        """Tells every rank `body` and returns what each says, own rank included, in rank order.

        `what` names the step and must be the same on every rank. `files[r]` is a descriptor for
        rank r, which stays open here; up to `expected` come from each rank and belong to the
        caller. RendezvousError if a rank does something else or nothing.
        """
        self._step += 1
        told = {"what": what, "step": self._step, "body": dict(body)}
        given = files or {}
        answers: dict[int, Answer] = {self.rank: Answer(body)}
        deadline = time.monotonic() + self.deadline_s
        try:
            for other, channel in self._channels.items():
                attached = [given[other]] if other in given else []
                self._send(other, channel, told, attached, deadline)
            for other, channel in self._channels.items():
                message = self._receive(other, channel, what, deadline, expected)
                answers[other] = Answer(message.body["body"], message.files)
        except BaseException:
            for answer in answers.values():
                Message({}, answer.files).close()
            raise
        return [answers[rank] for rank in range(self.world_size)]

    def barrier(self, what: str = "a barrier") -> None:
        """Returns when every rank has called it."""
        self.exchange(what, {})

    def close(self) -> None:
        """Closes the channels. Not collective: the others see it when they next exchange."""
        for channel in self._channels.values():
            channel.close()
        self._channels = {}

    def _send(
        self,
        other: int,
        channel: Channel,
        told: Mapping[str, Any],
        files: list[int],
        deadline: float,
    ) -> None:
        try:
            channel.send(told, files, timeout_s=_left(deadline))
        except ChannelError as error:
            raise RendezvousError(f"rank {self.rank} lost rank {other}: {error}") from error

    def _receive(
        self, other: int, channel: Channel, what: str, deadline: float, files: int
    ) -> Message:
        try:
            message = channel.receive(timeout_s=_left(deadline), files=files)
        except ChannelError as error:
            raise RendezvousError(
                f"rank {self.rank} waits at {what!r} for rank {other}: {error}"
            ) from error
        theirs = (message.body.get("what"), message.body.get("step"))
        if theirs != (what, self._step) or not isinstance(message.body.get("body"), dict):
            message.close()
            raise RendezvousError(
                f"rank {self.rank} is at {what!r} (step {self._step}) and rank {other} at "
                f"{theirs[0]!r} (step {theirs[1]}): every rank must do the same in the same order"
            )
        return message


def _require_private(folder: Path) -> None:
    try:
        found = folder.lstat()
    except OSError as error:
        raise RendezvousError(
            f"{folder} cannot be used: {error.strerror}; are all ranks on one machine?"
        ) from error
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not private or found.st_uid != os.geteuid():
        raise RendezvousError(
            f"{folder} is not a private folder of this user: make one with new_run_folder()"
        )


def _socket_of(folder: Path, rank: int) -> Path:
    return folder / f"{rank}.socket"


def _listen(folder: Path, rank: int) -> Listener:
    try:
        return Listener(_socket_of(folder, rank))
    except ChannelError as error:
        raise RendezvousError(f"rank {rank} cannot join, is it given twice? {error}") from error


def _call(folder: Path, rank: int, other: int, deadline: float) -> Channel:
    try:
        channel = connect(_socket_of(folder, other), timeout_s=_left(deadline))
        channel.send({"rank": rank}, timeout_s=_left(deadline))
    except ChannelError as error:
        raise RendezvousError(f"rank {rank} does not reach rank {other}: {error}") from error
    return channel


def _admit(listener: Listener, missing: list[int], deadline: float) -> tuple[int, Channel]:
    try:
        channel = listener.accept(timeout_s=_left(deadline))
        rank = channel.receive(timeout_s=_left(deadline)).body.get("rank")
    except ChannelError as error:
        names = ", ".join(map(str, missing))
        raise RendezvousError(f"ranks {names} did not come in time: {error}") from error
    if rank not in missing:
        channel.close()
        raise RendezvousError(f"somebody came as rank {rank!r}; still missing are {missing}")
    return rank, channel


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 1e-3)
