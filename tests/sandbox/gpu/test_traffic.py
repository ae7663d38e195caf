"""Bytes over NVLink by the GPUs' own counters: what they show, and when they are believed."""

from collections.abc import Iterator
from typing import Any

import pytest

from sandbox.gpu import traffic
from sandbox.gpu.traffic import Counted, busiest, evidence, too_little

NEEDED = 1e6


class _Pool:
    """Workers whose GPUs count what `move` says."""

    def __init__(self, *, tells: bool = True) -> None:
        self._tells = tells
        self._moved = [[0, 0], [0, 0]]

    def move(self, rank: int, sent: float, received: float) -> None:
        self._moved[rank][0] += int(sent)
        self._moved[rank][1] += int(received)

    def ask(self, command: str) -> Iterator[dict[str, Any]]:
        assert command == "traffic"
        return iter([{"nvlink": list(pair) if self._tells else None} for pair in self._moved])


def counted(per_launch: float, *, tells: bool = True) -> Counted:
    pool = _Pool(tells=tells)
    found = Counted(pool)  # type: ignore[arg-type]
    for _ in range(3):
        with found.during(launches=10):
            pool.move(1, 10 * per_launch / 2, 10 * per_launch)
    return found


def test_the_busiest_rank_and_direction_count() -> None:
    assert busiest([(0, 5), (10, 0)], [(20, 25), (10, 40)], launches=4) == 10.0
    assert counted(NEEDED).median == NEEDED
    assert counted(NEEDED, tells=False).median is None


@pytest.mark.parametrize(
    ("mine", "theirs", "missing"),
    [(1.0, 1.5, False), (0.96, 1.0, False), (0.5, 1.5, True), (0.0, 1.0, True)],
)
def test_a_kernel_must_move_what_the_operator_needs(
    mine: float, theirs: float, missing: bool
) -> None:
    found = evidence(counted(mine * NEEDED), counted(theirs * NEEDED), NEEDED)
    assert found["counted"]
    assert (too_little(found) is not None) == missing


def test_counters_that_miss_the_baseline_are_not_believed() -> None:
    found = evidence(counted(0.0), counted(0.5 * NEEDED), NEEDED)
    assert not found["counted"]
    assert "miss the baseline's own bytes" in found["why"]
    assert too_little(found) is None


def test_a_driver_that_does_not_tell_accuses_nobody() -> None:
    found = evidence(counted(0.0, tells=False), counted(NEEDED), NEEDED)
    assert found == {"counted": False, "why": "the driver does not tell"}
    assert too_little(found) is None


@pytest.mark.parametrize("answer", [None, [1], "12", [1, 2, 3]])
def test_an_answer_of_another_form_is_no_count(answer: object) -> None:
    class Odd(_Pool):
        def ask(self, command: str) -> Iterator[dict[str, Any]]:
            return iter([{"nvlink": answer}])

    assert traffic.totals(Odd()) is None  # type: ignore[arg-type]
