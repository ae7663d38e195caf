"""docs/hazards.md names every hazard once, and only tests and mutants that exist."""

import re
from pathlib import Path

from benchmarks.mutation.runtime_mutants import RUNTIME_MUTANTS

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"\| (H\d+) \| [^|]+ \| ([a-z, ]+) \| ([^|]+) \| `(\w+)` \|")
ROWS = [m for line in (ROOT / "docs" / "hazards.md").read_text().splitlines()
        if (m := ROW.fullmatch(line))]  # fmt: skip


def test_every_hazard_has_its_row() -> None:
    assert [row[1] for row in ROWS] == [f"H{number}" for number in range(1, 28)]


def test_the_tests_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", source, re.M))
    assert not {row[4] for row in ROWS} - defined


def test_what_the_headers_are_said_to_be_checked_for_has_mutants() -> None:
    """H23 is a kernel of its own, which no edit of the headers makes."""
    said = {row[1] for row in ROWS if "headers" in row[2]} - {"H23"}
    assert said == {mutant.hazard for mutant in RUNTIME_MUTANTS}
    for row in ROWS:
        kinds = {kind for m in RUNTIME_MUTANTS if m.hazard == row[1] for kind in m.kinds}
        named = set(re.findall(r"`(\w+)`", row[3].split(";")[0]))
        assert row[1] == "H23" or not kinds or named <= kinds, row[1]
