"""The attack suite in CI: nothing is missed, nobody honest is refused, counting is right."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.attacks.__main__ import judged
from benchmarks.attacks.catalogue import CATALOGUE
from benchmarks.attacks.judging import GPU_ONLY, Outcome
from benchmarks.attacks.suite import Entry, entries
from benchmarks.attacks.table import counts, markdown, summary
from sandbox.rules.scan import scan
from sandbox.verdict import STATUSES

TARGET = "sim:h200x4"


def test_the_suite_is_as_large_as_it_should_be() -> None:
    attacks, honest = entries("attack"), entries("honest")
    assert len(attacks) >= 60
    assert len(honest) >= 40
    assert {e.sort for e in attacks} == {"pk", "cuda", "triton", "problem"}
    assert len({(e.kind, e.sort, e.name) for e in attacks + honest}) == len(attacks + honest)
    used = {number for e in attacks for number in e.entries}
    assert used <= set(CATALOGUE), sorted(used - set(CATALOGUE))
    for entry in attacks + honest:
        assert entry.status in {*STATUSES, "admitted", "refused"}, entry.name
        assert (entry.status in {"correct", "admitted"}) == (entry.kind == "honest"), entry.name


@pytest.mark.parametrize(
    "entry", [e for e in entries() if e.sort != "problem"], ids=lambda e: f"{e.kind}-{e.name}"
)
def test_the_rules_refuse_what_they_must_and_nothing_else(entry: Entry) -> None:
    violations = scan(entry.candidate)
    if entry.text is not None:
        found = " ".join(map(str, violations))
        assert violations, "nothing forbidden was found"
        assert all(words in found for words in entry.text), found
    else:
        assert not violations, violations[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["attack", "honest"])
def test_the_judge_misses_nothing_and_refuses_nobody(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One in three; `make attacks` judges all of them."""
    chosen = [
        entry
        for entry in entries("attack" if kind == "attack" else "honest")
        if entry.sort in {"pk", "problem"}
        and not entry.name.startswith("shipped")
        and not (entry.sort == "pk" and scan(entry.candidate) and not entry.unscanned)
    ]
    cache = tmp_path_factory.getbasetemp() / "attacks"
    outcomes = judged(chosen[::3], TARGET, cache)
    wrong = [f"{o.entry.name}: {o.status}, not {o.entry.status}: {o.said}"
             for o in outcomes if not o.ok]  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert all(outcome.judged for outcome in outcomes)


def outcome(kind: str, wanted: str, got: str, said: str = "why") -> Outcome:
    entry = dataclasses.replace(entries("attack" if kind == "attack" else "honest")[0],
                                status=wanted, entries=("2",), evidence=("why",))  # fmt: skip
    return Outcome(entry, got, said, 1.0)


def test_counting_tells_caught_from_missed() -> None:
    outcomes = [
        outcome("attack", "rejected", "rejected"),
        outcome("attack", "rejected", "correct"),
        outcome("attack", "rejected", "rejected", "for another reason"),
        outcome("attack", "rejected", GPU_ONLY),
        outcome("honest", "correct", "correct"),
        outcome("honest", "correct", "race"),
    ]
    assert counts(outcomes) == {
        "attacks": 4, "caught": 1, "missed": 2, "attacks for a GPU": 1,
        "honest": 2, "right": 1, "false alarms": 1, "honest for a GPU": 0,
    }  # fmt: skip
    assert "2 missed" in summary(outcomes)
    assert "| 2 | result cached by pointer, shape or fingerprint | 4 | 1 | 2 | 1 |" in markdown(
        outcomes
    )


def test_a_header_out_of_form_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "attack" / "pk"
    folder.mkdir(parents=True)
    (folder / "x.attack").write_text("// tries: nothing\n// status: rejected\nint x;\n")
    monkeypatch.setattr("benchmarks.attacks.suite.FOLDER", tmp_path)
    with pytest.raises(ValueError, match="entry"):
        entries()
