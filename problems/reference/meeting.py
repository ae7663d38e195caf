"""Where the ranks of an in-process group meet: one rendezvous per collective, with a deadline.

Every rank is a thread. A collective ends for all ranks together: the last rank to arrive combines
what all have brought into fresh tensors, so no rank can overwrite what another still reads.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from problems.errors import ProblemError

Combine = Callable[[list[Any]], Sequence[Any]]


class RendezvousError(ProblemError):
    """Ranks that do not meet: different collectives, a rank that left, or a deadline that passed.

    `first` is False on ranks that only failed because another one did.
    """

    def __init__(self, message: str, *, first: bool = True) -> None:
        super().__init__(message)
        self.first = first


@dataclass
class _Round:
    """One collective: what each rank calls, what it brings and what comes out."""

    calls: dict[int, str] = field(default_factory=dict)
    brought: dict[int, Any] = field(default_factory=dict)
    results: Sequence[Any] | None = None


class Meeting:
    """The rendezvous of `world_size` threads; `deadline_s` bounds every wait."""

    def __init__(self, world_size: int, deadline_s: float) -> None:
        self.world_size = world_size
        self.deadline_s = deadline_s
        self._changed = threading.Condition()
        self._rounds: list[_Round] = []
        self._reached = [0] * world_size
        self._left: set[int] = set()
        self._failure: str | None = None
        self._messages: defaultdict[tuple[int, int, int], deque[Tensor]] = defaultdict(deque)

    @property
    def calls(self) -> tuple[str, ...]:
        """What rank 0 called in each collective so far, in order."""
        return tuple(round.calls[0] for round in self._rounds if 0 in round.calls)

    def collective(self, rank: int, call: str, brought: Any, combine: Combine) -> Any:
        """Bring something to this rank's next collective; return this rank's entry of the result.

        `call` names the collective with whatever must agree on all ranks. `combine` gets what the
        ranks brought, in rank order, and returns one fresh result per rank.

        Raises:
            RendezvousError: the ranks call different things, one left, or the deadline passed.
        """
        with self._changed:
            number = self._reached[rank]
            self._reached[rank] += 1
            if number == len(self._rounds):
                self._rounds.append(_Round())
            current = self._rounds[number]
            current.calls[rank] = call
            current.brought[rank] = brought
            if len(set(current.calls.values())) > 1:
                self._fail(f"The ranks disagree in collective {number}: {_by_rank(current.calls)}.")
            if len(current.calls) == self.world_size:
                self._finish(current, number, combine)
            self._wait(
                lambda: current.results is not None, lambda gone: self._missing(number, gone)
            )
            assert current.results is not None
            return current.results[rank]

    def send(self, rank: int, to: int, tag: int, tensor: Tensor) -> None:
        """Leave a copy of a tensor for another rank; never waits."""
        with self._changed:
            self._messages[rank, to, tag].append(tensor.clone())
            self._changed.notify_all()

    def receive(self, rank: int, source: int, tag: int) -> Tensor:
        """Take the oldest tensor that `source` left for this rank under `tag`."""
        box = self._messages[source, rank, tag]
        with self._changed:
            self._wait(
                lambda: len(box) > 0,
                lambda gone: (
                    f"Rank {rank} waits for a message of rank {source} (tag {tag}); "
                    + ("it has returned or raised" if gone else "none came")
                ),
                needs=source,
            )
            return box.popleft()

    def leave(self, rank: int) -> None:
        """Tell the others that this rank has returned or raised, so that none waits for it."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def _finish(self, current: _Round, number: int, combine: Combine) -> None:
        brought = [current.brought[rank] for rank in range(self.world_size)]
        try:
            current.results = combine(brought)
        except (ValueError, RuntimeError, IndexError) as error:
            self._fail(f"Collective {number} ({current.calls[0]}) cannot be computed: {error}")
        current.brought.clear()
        self._changed.notify_all()

    def _wait(
        self,
        done: Callable[[], bool],
        missing: Callable[[set[int]], str],
        needs: int | None = None,
    ) -> None:
        """Wait for `done`; `missing` words the failure, given the ranks that have left."""
        end = time.monotonic() + self.deadline_s
        while not done():
            if self._failure is not None:
                raise RendezvousError(self._failure, first=False)
            gone = self._left if needs is None else self._left & {needs}
            if gone:
                self._fail(f"{missing(gone)}.")
            remaining = end - time.monotonic()
            if remaining <= 0 or not self._changed.wait(remaining):
                self._fail(f"{missing(set())} within {self.deadline_s:g} s.")

    def _missing(self, number: int, gone: set[int]) -> str:
        calls = self._rounds[number].calls
        if gone:
            return (
                f"Rank {_listed(gone)} has returned or raised without coming to collective "
                f"{number} ({_by_rank(calls)})"
            )
        absent = set(range(self.world_size)) - set(calls)
        return f"Rank {_listed(absent)} did not come to collective {number} ({_by_rank(calls)})"

    def _fail(self, message: str) -> None:
        if self._failure is not None:
            raise RendezvousError(self._failure, first=False)
        self._failure = message
        self._changed.notify_all()
        raise RendezvousError(message)


def _listed(ranks: set[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks))


def _by_rank(calls: dict[int, str]) -> str:
    ranks: dict[str, list[str]] = {}
    for rank, call in sorted(calls.items()):
        ranks.setdefault(call, []).append(str(rank))
    return "; ".join(f"rank {', '.join(who)}: {call}" for call, who in ranks.items())
