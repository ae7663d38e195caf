"""The best kernel so far, timed by turns with the candidate that wants its place.

Times of two runs differ by what the machine did meanwhile; times of one run, taken by turns, do
not. What goes wrong with the incumbent is no fault of the candidate: it ends the comparison.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from sandbox.gpu import clock
from sandbox.gpu.contender import Contender
from sandbox.gpu.group import GroupEnded
from sandbox.stages import StageFailed


class Incumbent:
    """A contender that may fail; a context manager around its case.

    `make` opens the case. Once it has failed, nothing more is asked of it; if its ranks were
    stopped, `suspect` is called, for the GPUs to be looked at before the next candidate.
    """

    def __init__(self, make: Callable[[], Contender], suspect: Callable[[], None]) -> None:
        self._make, self._suspect = make, suspect
        self._contender: Contender | None = None
        self._left_out = ""

    def __enter__(self) -> "Incumbent":
        with self._spared():
            self._contender = self._make()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._contender is None:
            return
        if self._left_out and kind is None:  # its ranks are gone, and can be told nothing
            kind = StageFailed
        with self._spared():
            self._contender.case.__exit__(kind, error, where)

    def ready(self) -> None:
        """Launches, compares and sizes, as for every contender."""
        if self._contender is not None and not self._left_out:
            with self._spared():
                self._contender.ready()

    def time(self, number: int) -> None:
        """One round."""
        if self._contender is not None and not self._left_out:
            with self._spared():
                self._contender.time(number)

    def to_json(self, candidate_us: Sequence[float]) -> dict[str, Any]:
        """Its time per launch, and how many times as fast the candidate is, with the 95 % interval.

        Or why there is none.
        """
        if self._contender is None or self._left_out:
            return {"left_out": self._left_out}
        samples = self._contender.samples_us
        spread = clock.spread(samples)
        return {
            **spread.to_json(),
            "ratio": round(spread.median_us / clock.spread(candidate_us).median_us, 4),
            "ratio_interval": clock.ratio_interval(samples, candidate_us),
        }

    @contextmanager
    def _spared(self) -> Iterator[None]:
        try:
            yield
        except StageFailed as failed:
            self._left_out = str(failed.evidence.get("summary", failed.status))
        except GroupEnded as ended:
            self._left_out = f"its ranks ended: {ended}"
            self._suspect()
