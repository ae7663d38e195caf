"""Defective kernels on real GPUs: what is said of them, and that the next run on the GPUs is fine.

Each runs in a child process; the judge's view of the same is in test_judge.py.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from tests.gpu import children
from tests.gpu.conftest import READY_AT_ONCE, selected
from tests.gpu.defects import DEFECTS, Defect, source
from tests.gpu.kernels import world

DEADLINE_S, ENDLESS_S = 25.0, 6.0
Built = Callable[[Candidate], Path]
Outcome = tuple[str, str]


def run(library: Path, deadline_s: float = DEADLINE_S) -> Outcome:
    """What comes of three launches of a kernel that passes x on, and what is said of it."""
    arguments = {"library": str(library), "launches": 3, "world": world()}
    child = children.run("defective", arguments, deadline_s=deadline_s)
    if child.trouble:
        return ("report" if child.of("report") else "stopped"), child.trouble
    wrong = str(child.of("result")[0]["wrong"])
    return ("wrong" if wrong else "right"), wrong


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, built: Built) -> dict[Defect, Future[list[Outcome]]]:
    """The outcome of every defective kernel, and of the good one in the turn after it.

    All run before the first test that asks: while one has the GPUs the next ones get ready.
    """

    def both(defect: Defect) -> list[Outcome]:
        deadline = ENDLESS_S if defect.outcome == "stopped" else DEADLINE_S
        first = run(built(defect.candidate()), deadline)
        return [first, run(built(source(defect.kernel)))]

    defects = selected(request.session.items, "defect", Defect)
    with ThreadPoolExecutor(READY_AT_ONCE) as pool:
        return {defect: pool.submit(both, defect) for defect in defects}


@pytest.mark.parametrize("kernel", ["ring", "raw_ring"])
def test_without_a_defect_it_is_right(kernel: str, built: Built) -> None:
    assert run(built(source(kernel))) == ("right", "")


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_reported_and_harms_nobody_else(
    defect: Defect, outcomes: dict[Defect, Future[list[Outcome]]]
) -> None:
    (kind, text), afterwards = outcomes[defect].result()
    assert kind == defect.outcome, text
    assert re.search(defect.evidence, text), text
    assert afterwards == ("right", "")
