"""All shipped kernels under compute-sanitizer, at a small and a ragged shape, ranks on one GPU.

`python3 -m tests.gpu.sanitizer [NAME...]` does the same and prints all that the tool says.
"""

from collections.abc import Callable

import pytest

from tests.gpu.conftest import selected
from tests.gpu.kernels import world
from tests.gpu.sanitizer import RANKS, SHAPES, TOOLS, Check, Found, checks, examine_all, sanitizer

CHECKS = [
    pytest.param(check, id=str(check).replace(" ", "-")) for check in checks((), TOOLS, SHAPES)
]


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, needs_gpus: None) -> Callable[[Check], Found]:
    """What the tool finds; all checks run before the first test that asks, one on each GPU."""
    if sanitizer() is None:
        pytest.skip("there is no compute-sanitizer on this machine")
    todo = selected(request.session.items, "check", Check)
    results = dict(examine_all(todo, RANKS, world()))
    if all(result.refused for result in results.values()):
        pytest.skip("compute-sanitizer does not support this machine's GPUs")
    return results.__getitem__


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found(check: Check, found: Callable[[Check], Found]) -> None:
    result = found(check)
    assert result.clean, f"{result.summary}\n{result.trouble}\n{result.said}"
