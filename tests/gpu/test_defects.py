"""Defective kernels on real GPUs: what is said of them, and that the next run on the GPUs is fine.

Each runs in a child process; the judge's view of the same is in test_judge.py.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from tests.gpu import children
from tests.gpu.defects import DEFECTS, Defect, source

DEADLINE_S = 25.0  # an honest child needs a few seconds for its GPU contexts
ENDLESS_S = 12.0
Built = Callable[[Candidate], Path]


def run(library: Path, deadline_s: float = DEADLINE_S) -> children.Child:
    """Three launches of a kernel that passes x on."""
    arguments = {"library": str(library), "launches": 3}
    return children.run("defective", arguments, deadline_s=deadline_s)


def outcome(child: children.Child) -> tuple[str, str]:
    """What came of a child, and what is said of it."""
    if child.trouble:
        return ("report" if child.of("report") else "stopped"), child.trouble
    wrong = str(child.of("result")[0]["wrong"])
    return ("wrong" if wrong else "right"), wrong


@pytest.mark.parametrize("kernel", ["ring", "raw_ring"])
def test_without_a_defect_it_is_right(kernel: str, built: Built) -> None:
    assert outcome(run(built(source(kernel)))) == ("right", "")


@pytest.mark.parametrize("defect", DEFECTS, ids=str)
def test_a_defect_is_reported_and_harms_nobody_else(defect: Defect, built: Built) -> None:
    deadline = ENDLESS_S if defect.outcome == "stopped" else DEADLINE_S
    kind, text = outcome(run(built(defect.candidate()), deadline))
    assert kind == defect.outcome, text
    assert re.search(defect.evidence, text), text
    assert outcome(run(built(source(defect.kernel)))) == ("right", "")
