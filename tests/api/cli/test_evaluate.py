"""`pkforge eval`: a verdict for a person, for a program, and for a shell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from api.cli import evaluate
from pk_runtime.bundle import write_bundle
from sandbox.isolation import IsolationUnavailable
from tests.api import jobs_in_store, problem_files
from tests.api.cli.conftest import Run

KERNELS = Path(__file__).parents[3] / "pk_runtime" / "kernels"
ON = ("--target", "sim:h200x4", "--seed", "7")
FIELDS = {
    *("status", "stage", "problem", "target", "language", "timings", "evidence"),
    *("isolation", "seed", "versions"),
}
TIMING_FIELDS = {
    *("shape", "kind", "candidate_us", "baseline_us", "speedup", "roofline_us"),
    *("roofline_fraction", "bottleneck"),
}


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    """A shipped kernel, copied, so that tests may break it."""
    shutil.copy(KERNELS / "allreduce_one_shot.cu", tmp_path / "kernel.cu")
    return "kernel.cu"


@pytest.mark.slow
def test_a_correct_kernel_explains_itself(run: Run, kernel: str) -> None:
    ran = run("eval", kernel, "--problem", "allreduce", "--shape", "tiny", "--quick", *ON)
    assert ran.code == 0, ran.err
    for text in ("correct", "tiny on sim:h200x4", "us simulated", "gap", "taxes", "bottleneck"):
        assert text in ran.out
    assert "seed: 7" in ran.out
    assert len(ran.out.splitlines()) <= 60
    assert ran.err.splitlines()[:2] == ["scan", "build"]


@pytest.mark.slow
def test_json_is_exactly_one_object(run: Run, kernel: str) -> None:
    ran = run("eval", kernel, "--problem", "1", "--shape", "tiny", "--quick", "--json", *ON)
    verdict = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert set(verdict) >= FIELDS
    [timing] = verdict["timings"]
    assert set(timing) >= TIMING_FIELDS
    assert (timing["kind"], timing["shape"], verdict["seed"]) == ("simulated", "tiny", 7)
    assert verdict["isolation"]["isolated"] is True


@pytest.mark.slow
def test_a_trace_is_written_beside_the_verdict(run: Run, kernel: str, tmp_path: Path) -> None:
    on = ("--target", "sim:h100x8", "--seed", "7")
    options = ("--problem", "1", "--shape", "tiny", "--quick", "--json", "--trace", "t.json", *on)
    ran = run("eval", kernel, *options)
    assert ran.code == 0, ran.err
    [timing] = json.loads(ran.out)["timings"]
    assert timing["kind"] == timing["detail"]["report"]["kind"] == "uncalibrated"
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"tiny uncalibrated: rank {rank}" for rank in range(8)}


@pytest.mark.slow
def test_a_broken_kernel_exits_1_with_the_line(run: Run, kernel: str, tmp_path: Path) -> None:
    path = tmp_path / kernel
    text = path.read_text()
    line = text[: text.index("void")].count("\n") + 1
    path.write_text(text.replace("void", "vold", 1))
    ran = run("eval", kernel, "--problem", "allreduce", "--quick", *ON)
    assert ran.code == 1
    assert ran.out.startswith("build_failed")
    assert f"kernel.cu:{line}" in ran.out
    ran = run("eval", kernel, "--problem", "allreduce", "--quick", "--json", *ON)
    assert (ran.code, json.loads(ran.out)["status"]) == (1, "build_failed")


@pytest.mark.slow
def test_a_bundle_reproduces_its_verdict(run: Run, kernel: str, tmp_path: Path) -> None:
    options = ("--problem", "allreduce", "--shape", "tiny", "--json", *ON)
    first = json.loads(run("eval", kernel, *options).out)
    source = (tmp_path / kernel).read_text()
    manifest = {"problem": "allreduce", "target": "sim:h200x4", "verdict": first, "lineage": []}
    candidate = jobs_in_store.candidate(source)
    write_bundle(tmp_path / "k.zip", candidate, manifest)
    again = json.loads(run("eval", "k.zip", "--json").out)
    assert again == first


@pytest.mark.slow
def test_no_isolation_is_recorded(run: Run, kernel: str) -> None:
    options = ("--problem", "1", "--shape", "tiny", "--quick", "--no-isolation", "--json", *ON)
    verdict = json.loads(run("eval", kernel, *options).out)
    assert verdict["isolation"]["isolated"] is False


@pytest.mark.slow
def test_a_problem_file_is_judged_in_the_sandbox(run: Run, kernel: str, tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(problem_files.RAISES)
    ran = run("eval", kernel, "--problem", "raises.py", "--quick", *ON)
    assert (ran.code, ran.out) == (2, "")
    assert "on purpose" in ran.err


def test_without_a_sandbox_nothing_runs(
    run: Run, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(**_: bool) -> None:
        raise IsolationUnavailable("bwrap is missing", "Install bubblewrap.")

    monkeypatch.setattr("sandbox.isolation.choose", unavailable)
    ran = run("eval", kernel, "--problem", "1", *ON)
    assert (ran.code, ran.out) == (5, "")
    assert "Install bubblewrap." in ran.err


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing gets as far as running, so the sandbox need not be looked at."""
    from sandbox.isolation import UnisolatedExecutor

    monkeypatch.setattr(evaluate, "_executor", lambda _: UnisolatedExecutor())


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere.cu", "--problem", "1", *ON), 3, "nowhere.cu"),
        (("nowhere.zip",), 3, "nowhere.zip"),
        (("kernel.cu", *ON), 2, "--problem"),
        (("kernel.cu", "--problem", "1"), 2, "--target"),
        (("kernel.cu", "--problem", "nothing", *ON), 3, "nothing"),
        (("kernel.cu", "--problem", "1", "--target", "sim:x"), 3, "sim:h200x4"),
        (("kernel.cu", "--problem", "1", "--target", "cuda:h200x4"), 5, "sim:h200x4"),
        (("kernel.cu", "--problem", "1", "--shape", "huge", *ON), 3, "tiny"),
        (("kernel.cu", "--problem", "1", "--trace", ".", *ON), 2, "--trace"),
        (("kernel.cu", "--problem", "1", "--trace", "no/t.json", *ON), 2, "--trace"),
        (("kernel.cu", "--problem", "1", "--trace", "t", "--target", "cuda:h200x4"), 2, "sim:"),
        (("kernel.cu", "--problem", "1", "--knob", "x", *ON), 2, "name=number"),
        (("kernel.cu", "--problem", "1", "--knob", "=3", *ON), 2, "name=number"),
        (("kernel.cu", "--problem", "1", "--knob", "no_such=3", *ON), 2, "no_such"),
        (("kernel.cu", "--problem", "1", "--language", "c", *ON), 2, "triton"),
        (("kernel.cu", "--problem", "1", "--seed", "-1", "--target", "sim:h200x4"), 2, "--seed"),
        (("text.md", "--problem", "1", *ON), 2, "--language"),
        (("binary.cu", "--problem", "1", *ON), 2, "UTF-8"),
        (("empty.cu", "--problem", "1", *ON), 2, "empty"),
        (("broken.zip",), 2, "zip"),
        (("folder.cu", "--problem", "1", *ON), 2, "folder.cu"),
        (("kernel.cu", "--problem", "nowhere.py", *ON), 3, "nowhere.py"),
    ],
)
def test_bad_input_says_what_is_wrong(
    run: Run, kernel: str, tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "text.md").write_text("text")
    (tmp_path / "binary.cu").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.cu").write_text("")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 broken")
    (tmp_path / "folder.cu").mkdir()
    ran = run("eval", *arguments)
    assert (ran.code, ran.out) == (code, ""), ran
    assert said in ran.err


@pytest.mark.slow
def test_a_verdict_is_repeated_and_compared(run: Run, kernel: str, tmp_path: Path) -> None:
    options = ("--problem", "allreduce", "--shape", "tiny", "--quick", "--json", *ON)
    first = json.loads(run("eval", kernel, *options).out)
    (tmp_path / "verdict.json").write_text(json.dumps(first))
    ran = run("eval", kernel, "--replay", "verdict.json", "--json")
    answer = json.loads(ran.out)
    assert (ran.code, answer["verdict"], answer["replay"]["agrees"]) == (0, first, True)
    forged = {**first, "timings": [{**first["timings"][0], "candidate_us": 0.5}]}
    (tmp_path / "verdict.json").write_text(json.dumps(forged))
    ran = run("eval", kernel, "--replay", "verdict.json")
    assert ran.code == 1
    assert "does not agree: tiny took 0.50 us and takes" in ran.out


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize(
    ("verdict", "options", "code", "said"),
    [
        (None, (), 3, "verdict.json"),
        ("{", (), 2, "pkforge eval ... --json"),
        ("{}", (), 2, "not a verdict"),
        ("good", (), 2, "give the kernel's source file too"),
        ("good", ("kernel.cu",), 2, "not the one the verdict is about"),
        ("good", ("--seed", "3"), 2, "come from the verdict"),
    ],
)
def test_what_cannot_be_repeated_says_why(
    run: Run, kernel: str, tmp_path: Path, verdict: str | None, options: tuple[str, ...], code: int,
    said: str,
) -> None:  # fmt: skip
    good = {
        "status": "correct", "stage": "done", "problem": "allreduce", "target": "sim:h200x4",
        "language": "pk", "candidate": "c" * 64, "source": "d" * 64, "depth": "quick", "seed": 7,
        "evidence": {"summary": "right"}, "timings": [], "knobs": {}, "isolation": {},
        "versions": {},
    }  # fmt: skip
    if verdict is not None:
        text = json.dumps(good) if verdict == "good" else verdict
        (tmp_path / "verdict.json").write_text(text)
    ran = run("eval", "--replay", "verdict.json", *options)
    assert (ran.code, ran.out) == (code, ""), ran
    assert said in ran.err


@pytest.mark.slow
def test_every_order_of_synchronization_and_one_run_again(run: Run, tmp_path: Path) -> None:
    source = (KERNELS / "allreduce_push.cu").read_text()
    (tmp_path / "push.cu").write_text(source)
    options = ("--problem", "allreduce", "--shape", "tiny", "--quick", "--json", *ON)
    ran = run("eval", "push.cu", "--schedules", "exhaustive", *options)
    verdict = json.loads(ran.out)
    assert (ran.code, verdict["status"]) == (0, "correct"), verdict["evidence"]
    assert "order" in verdict["evidence"]["summary"]
    (tmp_path / "push.cu").write_text(source.replace("signal(self, g.ready,", "(void)(", 1))
    failed = json.loads(run("eval", "push.cu", *options).out)
    assert failed["status"] == "deadlock", failed["evidence"]
    again = run("eval", "push.cu", "--replay", failed["evidence"]["replay"], *options)
    assert (again.code, json.loads(again.out)["status"]) == (1, "deadlock")
    # The same run of the right kernel is right, and yet nothing that has passed the judge.
    (tmp_path / "push.cu").write_text(source)
    again = run("eval", "push.cu", "--replay", failed["evidence"]["replay"], *options)
    verdict = json.loads(again.out)
    assert (again.code, verdict["status"], verdict["stage"]) == (0, "correct", "check")
    assert verdict["timings"] == []


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--schedules", "many"), "or exhaustive"),
        (("--schedules", "0"), "1 to 100000"),
        (("--schedules", "1000000"), "1 to 100000"),
        (("--replay", "7", "--seed", "9"), "give one"),
        (("--replay", "shape=tiny schedule=eager"), "is no run of a check"),
    ],
)
def test_what_cannot_be_explored(
    run: Run, kernel: str, options: tuple[str, ...], said: str
) -> None:
    ran = run("eval", kernel, "--problem", "allreduce", *ON, *options)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
