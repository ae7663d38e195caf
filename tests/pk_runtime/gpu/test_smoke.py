"""The self-check where there is nothing to check."""

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.gpu import smoke
from pk_runtime.gpu.binding import Library, TensorView
from pk_runtime.gpu.driver import DriverError, device_count
from pk_runtime.gpu.smoke_rank import CHECKS as RANK_CHECKS


def has_gpu() -> bool:
    try:
        return device_count() > 0
    except DriverError:
        return False


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_without_a_driver_it_fails_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main() == 1
    text = capsys.readouterr().out
    assert text.startswith("FAILED driver and devices: NoDriverError: no NVIDIA driver: ")
    assert len(text.splitlines()) == 1


def test_a_check_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main(["memory", "speed"]) == 2
    assert "no check speed; known: memory, kernel" in capsys.readouterr().out


def test_every_check_has_words_and_a_function() -> None:
    assert set(smoke.CHECKS) == set(smoke.WHAT)
    assert {smoke.SAME_AS.get(check, check) for check in smoke.CHECKS} == set(RANK_CHECKS)


def test_a_failed_check_hides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> str:
        raise ZeroDivisionError("of a check")

    report = smoke.Report()
    assert not report.run("first", broken)
    assert report.run("second", lambda: "fine")
    text = capsys.readouterr().out
    assert "FAILED first: ZeroDivisionError: of a check\nTraceback" in text
    assert "OK     second: fine (0.0 s)" in text
    assert report.failed == 1


@pytest.mark.usefixtures("needs_nvcc")
def test_the_defective_kernel_builds_and_takes_its_tensors(compiler: Compiler) -> None:
    library = compiler.library(Candidate("pk", {"kernel.cu": smoke.DROPPED_SIGNAL}))
    view = TensorView(0, 0, 1, 64, 64, 64)
    plan = Library(library).plan(0, 4, {"x": [view] * 4, "y": [view] * 4}, {"y"})
    assert [needed.kind for needed in plan.needed] == ["control", "signals"]
    assert not plan.shared
