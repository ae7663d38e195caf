"""Problem files as strangers send them: a good one, and ones that must do no harm."""

from __future__ import annotations

import re
from pathlib import Path

_DOCUMENT = Path(__file__).parents[2] / "docs" / "problems.md"


def good() -> str:
    """The complete example of the document."""
    found = re.search(r"```python\n(.*?class ScaledAllReduce.*?)```", _DOCUMENT.read_text(), re.S)
    assert found is not None
    return found[1]


def renamed(slug: str) -> str:
    """The good one under another name."""
    return good().replace('slug = "scaled_allreduce"', f'slug = "{slug}"')


LOOPS = "while True:\n    pass\n"
RAISES = "raise RuntimeError('on purpose')\n"
NO_PYTHON = "def broken(:\n"
NO_PROBLEM = "x = 1\n"
KILLS_ITSELF = "import os\nos.kill(os.getpid(), 9)\n"
SNOOPS = """
import os
raise RuntimeError(f"SEEN {[name for name in os.environ if 'PKFORGE' in name]}")
"""


def trivial() -> str:
    """A problem that a kernel without any communication would pass."""
    return (
        good()
        .replace("dist.all_reduce(y, group=group)", "pass")
        .replace('sum(rank["x"].double() for rank in inputs)', 'inputs[0]["x"].double() * 0')
        .replace("y * g", "y * 0")
    )
