"""The shipped kernels under compute-sanitizer, at a small shape, several ranks on one GPU.

`python3 -m tests.gpu.sanitizer` does the same at more shapes and prints all that the tool says.
"""

from collections.abc import Callable

import pytest

from tests.gpu.kernels import EXAMPLES, WORLD, all_kernels
from tests.gpu.sanitizer import RANKS, TOOLS, Check, Found, checks, examine_all, sanitizer

SHAPE = "tiny"
CHECKS = [
    pytest.param(Check(kernel, tool, SHAPE), id=f"{kernel}-{tool}")
    for kernel in (*all_kernels(), *EXAMPLES)
    for tool in TOOLS
]


@pytest.fixture(scope="module")
def found(needs_gpus: None) -> Callable[[Check], Found]:
    """What the tool finds; all checks run before the first test that asks, one on each GPU."""
    if sanitizer() is None:
        pytest.skip("there is no compute-sanitizer on this machine")
    todo = checks((), TOOLS, (SHAPE,))
    results = dict(examine_all(todo, RANKS, WORLD))
    if all(result.refused for result in results.values()):
        pytest.skip("compute-sanitizer does not support this machine's GPUs")
    return results.__getitem__


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_found(check: Check, found: Callable[[Check], Found]) -> None:
    result = found(check)
    assert result.clean, f"{result.summary}\n{result.trouble}\n{result.said}"
