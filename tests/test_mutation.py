"""The mutation benchmark: its edits are what they say; its counting tells caught from missed."""

import pytest

from benchmarks.mutation.__main__ import MISSED, Result, examine, table
from benchmarks.mutation.operators import Mutant, mutants
from pk_runtime.kernels import shipped_kernel, shipped_names

EVERY = [m for name in shipped_names() for m in mutants(name, shipped_kernel(name).source)]


def test_there_are_many_edits_and_each_changes_one_place() -> None:
    assert len(EVERY) >= 60
    assert len({m.operator for m in EVERY}) == 15
    for mutant in EVERY:
        before = shipped_kernel(mutant.kernel).source.splitlines()
        after = mutant.source.splitlines()
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=False), 1) if a != b]
        assert changed[0] == mutant.line


def test_an_edit_says_what_it_does() -> None:
    found = {
        m.operator: m.source.splitlines()[m.line - 1].strip()
        for m in mutants("gemm_reducescatter", shipped_kernel("gemm_reducescatter").source)
    }
    assert found["dropped signal"] == "if (!own) ;"
    assert "(self.world() - 1) + 1);" in found["wait for one more"]
    assert found["dropped wait"] == ";", "a wait whose slot is used is no statement of its own"


@pytest.mark.parametrize(
    ("operator", "outcome"),
    [("dropped signal", "deadlock: "), ("doubled signal", "race")],
)
def test_a_mutant_is_caught_by_what_it_breaks(operator: str, outcome: str) -> None:
    mutant = next(m for m in EVERY if (m.kernel, m.operator) == ("allreduce_push", operator))
    result = examine(mutant)
    assert result.outcome.startswith(outcome), result
    assert "ready" in result.said


def test_the_kernel_itself_is_not_blamed() -> None:
    source = shipped_kernel("allreduce_ll").source
    assert examine(Mutant("allreduce_ll", "none", 0, source)).outcome == MISSED


def test_the_table_counts_and_names_what_was_missed() -> None:
    results = [
        Result("a", "dropped wait", 7, "race", "", 1.0),
        Result("a", "dropped wait", 9, MISSED, "", 1.0),
        Result("b", "dropped wait", 3, "does not build", "", 1.0),
    ]
    text = table(results)
    assert "| dropped wait | 2 | 1 | 1 |  | 1 |" in text
    assert "- `a.cu` line 9: dropped wait" in text
