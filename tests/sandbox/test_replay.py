"""Repeating a verdict: what must agree, and when one no longer counts."""

import dataclasses
from typing import Any

import pytest

from pk_runtime.kernels import shipped_kernel
from sandbox.replay import ReplayError, again, compare, void_because
from sandbox.verdict import Timing, Verdict

KERNEL = shipped_kernel("alltoall")
VERSIONS = {"judge": "1", "problem": "aa", "sheet": "h200x4@bb", "compiler": "12.2", "pkforge": "1"}


def timing(us: float, kind: Any = "simulated") -> Timing:
    return Timing("m1", kind, us, 2 * us, 2.0, us / 2, 0.5, "nvlink")


def verdict(**changed: Any) -> Verdict:
    known: dict[str, Any] = {
        "status": "correct", "stage": "done", "problem": "alltoall", "target": "sim:h200x4",
        "language": "pk", "candidate": KERNEL.digest(), "depth": "full", "seed": 7,
        "evidence": {"summary": "right"}, "timings": (timing(10.0),), "versions": VERSIONS,
        "source": KERNEL.source_digest(), "knobs": {"depth": 4, "cols": 128},
    }  # fmt: skip
    return Verdict(**{**known, **changed})


def test_the_same_answer_agrees() -> None:
    agreement = compare(verdict(), verdict())
    assert agreement.agrees
    assert agreement.summary == "The repetition agrees with the verdict."
    assert agreement.to_json()["agrees"] is True


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"status": "race", "stage": "check"}, "status was correct and is race"),
        ({"timings": (timing(10.001),)}, "m1 took 10.00 us and takes 10.00 us"),
        ({"timings": (timing(10.0, "measured"),)}, "m1 was simulated and is measured"),
        ({"timings": ()}, "m1 was timed and is not"),
    ],
)
def test_another_answer_does_not(changed: dict[str, Any], said: str) -> None:
    agreement = compare(verdict(), verdict(**changed))
    assert not agreement.agrees
    assert said in agreement.summary


def test_measured_times_may_differ_by_what_measurements_do() -> None:
    first = verdict(timings=(timing(100.0, "measured"),))
    assert compare(first, verdict(timings=(timing(108.0, "measured"),))).agrees
    assert not compare(first, verdict(timings=(timing(115.0, "measured"),))).agrees


def test_what_changed_meanwhile_is_told_beside_the_differences() -> None:
    now = {**VERSIONS, "compiler": "14.1"}
    agreement = compare(verdict(), verdict(versions=now, status="race"))
    assert "compiler was 12.2 and is 14.1" in agreement.summary


def test_a_verdict_is_void_when_what_decides_has_changed() -> None:
    assert void_because(VERSIONS, {**VERSIONS, "compiler": "14.1", "pkforge": "2"}) == ()
    for name, called in (("judge", "the judge"), ("problem", "the problem"),
                         ("sheet", "the hardware sheet")):  # fmt: skip
        [reason] = void_because(VERSIONS, {**VERSIONS, name: "other"})
        assert reason == f"{called} was {VERSIONS[name]} and is other"


def test_only_its_own_source_repeats_a_verdict() -> None:
    candidate = again(verdict(knobs={"cols": 256, "depth": 2}), KERNEL)
    assert candidate.files == KERNEL.files
    other = dataclasses.replace(KERNEL, files={"kernel.cu": KERNEL.source + "// changed\n"})
    with pytest.raises(ReplayError, match="not the one the verdict is about"):
        again(verdict(), other)
    with pytest.raises(ReplayError):
        again(verdict(source=""), other)


def test_a_verdict_without_the_hash_of_its_source_is_matched_by_its_candidate() -> None:
    assert again(verdict(source=""), KERNEL) == KERNEL
