"""Verdicts as text: everything that a person needs is there, for every status."""

from dataclasses import replace

import pytest

from sandbox.explain import MEANING, MOST_LINES, NEXT, WIDTH, compact, explain
from sandbox.verdict import STATUSES, Status, Timing
from tests.pk_runtime.test_report import REPORT
from tests.sandbox.test_verdict import TIMING, VERDICT


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_says_what_and_what_next(status: Status) -> None:
    lines = explain(replace(VERDICT, status=status, stage="check", timings=()))
    assert lines[0] == f"{status}: {MEANING[status]}"
    assert any(NEXT[status].split()[0] in line for line in lines)
    assert all(len(line) <= WIDTH + 40 and line == line.rstrip() for line in lines)


def test_times_have_units_and_say_what_they_are() -> None:
    text = "\n".join(explain(VERDICT))
    for words in ("simulated", "100.0 us", "150.0 us", "1.50x", "50 %", "nvlink", "stages=4",
                  "label lossy_arithmetic"):  # fmt: skip
        assert words in text


def test_a_deadlock_shows_who_waits_for_what() -> None:
    waits = [{"rank": 2, "block": 5, "role": "communicator", "launch": 0, "signal": "ready",
              "slot": 3, "expected": 4, "seen": 2},
             {"rank": 1, "block": 0, "role": "storer", "launch": 0, "waits_for": "ring_data",
              "ring": 1, "expected": 1, "seen": 0},
             {"rank": 1, "block": 0, "role": "communicator", "launch": 0, "waits_for": "mailbox",
              "mailbox": "box", "slot": 3, "source": 2}]  # fmt: skip
    evidence = {"summary": "stuck", "waits": waits * 10, "shape": "tiny", "schedule_seed": 7}
    lines = explain(replace(VERDICT, status="deadlock", stage="check", evidence=evidence))
    text = "\n".join(lines)
    assert "stage: check, shape tiny, schedule 7" in text
    header = next(line for line in lines if line.split()[:2] == ["rank", "block"])
    row = lines[lines.index(header) + 1].split()
    assert row == ["2", "5", "communicator", "0", "ready", "3", "4", "2"]
    assert "ring_data #1" in text
    assert "mailbox box from 2" in text
    assert "and 22 more that wait" in text


def test_a_wrong_output_shows_where() -> None:
    finding = {"output": "c", "rank": 1, "kind": "tile", "fraction_bad": 0.25, "first_bad": [0, 64],
               "expected": 1.5, "seen": "nan", "max_abs": 3.0, "limit": 0.1}  # fmt: skip
    evidence = {"summary": "off", "comparison": {"findings": [finding]}}
    text = "\n".join(explain(replace(VERDICT, status="wrong_output", evidence=evidence)))
    for words in ("25 %", "[0, 64]", "1.5", "nan", "tile"):
        assert words in text


def test_compiler_messages_and_violations() -> None:
    diagnostic = {"file": "kernel.cu", "line": 3, "column": 1, "severity": "error", "message": "no"}
    violation = {"file": "kernel.cu", "line": 4, "token": "asm", "why": "it", "instead": "do"}
    evidence = {"summary": "x", "diagnostics": [diagnostic], "violations": [violation]}
    lines = explain(replace(VERDICT, status="build_failed", stage="build", evidence=evidence))
    assert "  kernel.cu:3:1: error: no" in lines
    assert "  kernel.cu:4: asm" in lines


def test_no_isolation_is_said_loudly() -> None:
    lines = explain(replace(VERDICT, isolation={"isolated": False}))
    assert any("isolation: NONE" in line for line in lines)


def _timing(shape: str, us: float, **detail: object) -> Timing:
    return replace(TIMING, shape=shape, candidate_us=us, detail=detail)


def test_many_shapes_fit_into_sixty_lines_and_the_slowest_is_told_in_full() -> None:
    timings = [_timing(f"m{n}", float(n), report=REPORT.to_json()) for n in range(1, 21)]
    lines = compact(timings)
    assert len(lines) <= MOST_LINES
    assert sum(line.startswith("  taxes") for line in lines) >= 1
    told = "\n".join(lines)
    assert all(f"m{n} on sim:h200x4" in told for n in range(1, 21))
    assert "gap" in told[told.index("m20 on") :]


def test_more_shapes_than_lines_are_cut_and_counted() -> None:
    lines = compact([_timing(f"m{n}", 1.0, report=REPORT.to_json()) for n in range(100)])
    assert len(lines) == MOST_LINES
    assert lines[-1] == "(141 more lines are left out)"


def test_a_correct_verdict_is_a_screenful() -> None:
    timings = tuple(_timing(f"m{n}", float(n), report=REPORT.to_json()) for n in range(1, 5))
    assert len(explain(replace(VERDICT, timings=timings))) <= MOST_LINES


def test_an_uncalibrated_time_says_so() -> None:
    report = replace(REPORT, kind="uncalibrated").to_json()
    timing = replace(_timing("m1", 9.0, report=report), kind="uncalibrated")
    text = "\n".join(explain(replace(VERDICT, timings=(timing,))))
    assert "uncalibrated  9.0 us" in text
    assert "UNCALIBRATED" in text


@pytest.mark.parametrize(
    ("incumbent", "words"),
    [
        ({"ratio": 1.04, "ratio_interval": [1.02, 1.06]},
         "1.040x the best so far, 1.020 to 1.060 (95 %)"),
        ({"left_out": "its ranks ended"}, "not compared with the best so far: its ranks ended"),
    ],
)  # fmt: skip
def test_measured_times_say_how_they_compare_with_the_best_so_far(
    incumbent: dict[str, object], words: str
) -> None:
    timing = replace(TIMING, kind="measured", detail={"incumbent": incumbent})
    assert words in " ".join(" ".join(explain(replace(VERDICT, timings=(timing,)))).split())
    alone = replace(TIMING, kind="measured", detail={})
    assert "best so far" not in "\n".join(explain(replace(VERDICT, timings=(alone,))))
