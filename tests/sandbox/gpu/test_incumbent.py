"""The incumbent beside a candidate: what is said of the two, and that its failures are its own."""

from collections.abc import Callable
from types import TracebackType

import pytest

from sandbox.gpu.contender import Contender
from sandbox.gpu.failures import Outcome
from sandbox.gpu.group import GroupEnded
from sandbox.gpu.incumbent import Incumbent
from sandbox.stages import StageFailed


class _Case:
    def __init__(self) -> None:
        self.left: list[type[BaseException] | None] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self.left.append(kind)


class _Fixed(Contender):
    """A contender with known times."""

    def __init__(self, action: Callable[[], None] = lambda: None) -> None:
        self.case = _Case()  # type: ignore[assignment]
        self.samples_us = []
        self._action = action

    def ready(self) -> None:
        self._action()

    def time(self, number: int, *, quiet: bool = False) -> None:
        self._action()
        self.samples_us.append(200.0 + number)


def _never() -> None:
    raise AssertionError("nothing was stopped")


def test_the_ratio_says_how_many_times_as_fast_the_candidate_is() -> None:
    with Incumbent(_Fixed, _never) as incumbent:
        incumbent.ready()
        for number in range(6):
            incumbent.time(number)
        told = incumbent.to_json([100.0 + number for number in range(6)])
    low, high = told["ratio_interval"]
    assert told["ratio"] == pytest.approx(202.5 / 102.5, abs=1e-3)
    assert 1.9 < low <= told["ratio"] <= high < 2.01
    assert told["count"] == 6


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StageFailed("bench", "race", {"summary": "wrong in round 2"}), "wrong in round 2"),
        (GroupEnded("replay", [Outcome(1, "failed", "it died")]), "its ranks ended"),
    ],
)
def test_what_goes_wrong_ends_the_comparison_only(error: Exception, words: str) -> None:
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise error

    made, suspected = _Fixed(fails), list[int]()
    with Incumbent(lambda: made, lambda: suspected.append(1)) as incumbent:
        incumbent.ready()
        incumbent.time(0)
        told = incumbent.to_json([100.0])
    assert list(told) == ["left_out"]
    assert words in told["left_out"]
    assert len(calls) == 1, "once it has failed, nothing more is asked of it"
    assert len(suspected) == isinstance(error, GroupEnded), "GPUs are looked at after a kill only"
    assert isinstance(made.case, _Case)
    assert made.case.left == [StageFailed], "its ranks are told nothing more"


def test_one_that_cannot_be_opened_is_left_out() -> None:
    def refused() -> Contender:
        raise GroupEnded("plan", [Outcome(0, "failed", "no memory")])

    with Incumbent(refused, lambda: None) as incumbent:
        incumbent.ready()
        incumbent.time(0)
    assert "no memory" in incumbent.to_json([1.0])["left_out"]


def test_faults_of_the_judge_are_not_hidden() -> None:
    def broken() -> Contender:
        raise RuntimeError("a worker ended")

    with pytest.raises(RuntimeError, match="a worker ended"), Incumbent(broken, _never):
        pass
