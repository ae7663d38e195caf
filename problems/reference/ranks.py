"""Run a problem's reference on W ranks as threads of this process."""

import inspect
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from problems.contract import Problem, Tensors
from problems.errors import ProblemError, line_in
from problems.reference.defects import Defect
from problems.reference.group import ThreadGroup
from problems.reference.meeting import Meeting, RendezvousError
from problems.reference.variants import RING, Variant

RENDEZVOUS_S = 60.0
RUN_S = 900.0


class ReferenceFailed(ProblemError):  # noqa: N818
    """The reference raised on a rank; the message has the rank, the error and its line."""


@dataclass(frozen=True)
class Run:
    """The outputs of every rank and the collectives that were called, in order."""

    outputs: list[Tensors]
    calls: tuple[str, ...]


def run_ranks(problem: Problem, inputs: Sequence[Tensors]) -> list[Tensors]:
    """The reference's outputs on every rank; `inputs` has one entry per rank.

    Inputs are passed as they are: a problem that mutates them needs copies.

    Raises:
        ReferenceFailed: the reference raised.
        RendezvousError: its ranks call different collectives or wait for one that never comes.
    """
    return run(problem, inputs).outputs


def run(
    problem: Problem,
    inputs: Sequence[Tensors],
    *,
    defect: Defect | None = None,
    variant: Variant = RING,
    rendezvous_s: float = RENDEZVOUS_S,
    run_s: float = RUN_S,
) -> Run:
    """As `run_ranks`, with a communication defect or a variant of its sums, and deadlines in s."""
    world_size = len(inputs)
    meeting = Meeting(world_size, rendezvous_s)
    outputs: list[object] = [None] * world_size
    errors: list[Exception | None] = [None] * world_size

    def work(rank: int) -> None:
        torch.set_num_threads(1)  # of this thread: W teams that spin on few cores crawl
        try:
            with torch.no_grad():
                group = ThreadGroup(rank, meeting, defect, variant)
                outputs[rank] = problem.reference(group, **inputs[rank])
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread
            errors[rank] = error
        finally:
            meeting.leave(rank)

    threads = [
        threading.Thread(target=work, args=(rank,), name=f"{problem.slug} rank {rank}", daemon=True)
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    end = time.monotonic() + run_s
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    late = [str(rank) for rank, thread in enumerate(threads) if thread.is_alive()]
    _raise_first(problem, errors)
    if late:
        raise RendezvousError(
            f"The reference of {problem.slug!r} is still running on rank {', '.join(late)} after "
            f"{run_s:g} s. Look for an endless loop, or use a smaller shape."
        )
    return Run([_checked(problem, rank, out) for rank, out in enumerate(outputs)], meeting.calls)


def _raise_first(problem: Problem, errors: Sequence[Exception | None]) -> None:
    """Raise the error that began it; ranks that failed because of another one come last."""
    failed = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    if not failed:
        return
    rank, error = min(failed, key=lambda pair: _blame(pair[1]))
    if isinstance(error, RendezvousError):
        raise error
    file = inspect.getfile(type(problem))
    raise ReferenceFailed(
        f"The reference of {problem.slug!r} failed on rank {rank}: "
        f"{type(error).__name__}: {error}{_hint(error)}",
        file=Path(file).name,
        line=line_in(error, file),
    ) from error


def _blame(error: Exception) -> int:
    """0 for an error of the reference, 1 for a failed rendezvous, 2 for one that only followed."""
    if not isinstance(error, RendezvousError):
        return 0
    return 1 if error.first else 2


def _hint(error: Exception) -> str:
    text = str(error)
    if "Default process group" in text or "is not registered" in text:
        return (
            " Pass group=group to every torch.distributed call, use group.rank() and "
            "group.size(), and name peers by group_src and group_dst."
        )
    return ""


def _checked(problem: Problem, rank: int, outputs: object) -> Tensors:
    """What a reference returned, if it is a dict of the named tensors."""
    got = type(outputs).__name__
    if isinstance(outputs, dict):
        got = ", ".join(f"{name}: {type(value).__name__}" for name, value in outputs.items())
        tensors = all(isinstance(value, Tensor) for value in outputs.values())
        if tensors and set(outputs) == set(problem.output_names):
            return outputs
    raise ReferenceFailed(
        f"The reference of {problem.slug!r} must return a dict with the tensors "
        f"{', '.join(problem.output_names)}; on rank {rank} it returned {got or 'nothing'}.",
        file=Path(inspect.getfile(type(problem))).name,
    )
