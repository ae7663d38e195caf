"""The program that serves an untrusted problem file, and the same calls in-process."""

import sys
from pathlib import Path

import pytest
import torch

from pk_runtime.execution import Command, Completed, Limits, LocalExecutor
from problems import wire
from problems.errors import ProblemError, UnknownShape
from problems.host import main
from problems.hosting import InProcessHost, ProblemHost
from problems.loading import load_problem
from problems.registry import get
from problems.scales import exponent, span_of
from tests.problems.samples import example_file

REPOSITORY = Path(__file__).parents[2]


def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, file: Path, *words: str) -> int:
    """Answer one command in this process, in a folder of its own."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    return main([str(file), *words])


def run_host(folder: Path, *arguments: str) -> Completed:
    """Answer one command in a process."""
    folder.mkdir()
    command = Command(
        argv=(sys.executable, "-m", "problems.host", *arguments),
        workdir=folder,
        read_only=(REPOSITORY,),
        env={"PYTHONPATH": str(REPOSITORY)},
        limits=Limits(wall_s=60, memory_bytes=16 << 30),
    )
    return LocalExecutor().run(command)


def test_describe_materialize_and_defective(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = example_file(tmp_path)
    local: ProblemHost = InProcessHost(load_problem(file))
    assert ask(tmp_path / "a", monkeypatch, file, "describe", "--world", "2") == 0
    description = wire.read_description(tmp_path / "a", 2)
    assert description == local.describe(2)
    asked = ("--shape", "odd", "--world", "2", "--seed", "5")
    assert ask(tmp_path / "b", monkeypatch, file, "materialize", *asked) == 0
    made = wire.read_materialized(tmp_path / "b", description, "odd")
    expected = local.materialize("odd", 2, 5)
    for rank in range(2):
        assert torch.equal(made.inputs[rank]["x"], expected.inputs[rank]["x"])
        assert torch.equal(made.reference[rank]["y"], expected.reference[rank]["y"])
        assert torch.equal(made.golden[rank]["y"], expected.golden[rank]["y"])
    assert ask(tmp_path / "c", monkeypatch, file, "defective", *asked) == 0
    defective = wire.read_defective(tmp_path / "c", description, "odd")
    twice = local.defective("odd", 2, 5)["twice:1"]
    assert torch.equal(defective["twice:1"][0]["y"], twice[0]["y"])


def test_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(tmp_path / "a", monkeypatch, example_file(tmp_path), "lint") == 0
    assert wire.read_lint(tmp_path / "a").ok


@pytest.mark.slow
def test_as_a_process(tmp_path: Path) -> None:
    file = example_file(tmp_path)
    done = run_host(tmp_path / "a", str(file), "describe", "--world", "4")
    assert (done.exit_code, done.stdout, done.stderr) == (0, b"", b"")
    assert wire.read_description(tmp_path / "a", 4).slug == "scaled_allreduce"
    assert run_host(tmp_path / "b", str(file), "dance").exit_code == 2


def test_a_problem_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bad.py"
    file.write_text("x = 1 / 0\n")
    assert ask(tmp_path / "a", monkeypatch, file, "describe") == 1
    with pytest.raises(ProblemError, match=r"bad.py:1: .*ZeroDivisionError"):
        wire.read_description(tmp_path / "a", 4)


def test_a_reference_that_raises_has_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = example_file(tmp_path)
    text = file.read_text(encoding="utf-8").replace("dist.all_reduce(y,", "dist.all_rebuke(y,")
    file.write_text(text, encoding="utf-8")
    asked = ("materialize", "--shape", "tiny", "--world", "2", "--seed", "1")
    assert ask(tmp_path / "a", monkeypatch, file, *asked) == 1
    line = 1 + text.splitlines().index("        dist.all_rebuke(y, group=group)")
    with pytest.raises(ProblemError, match="all_rebuke") as caught:
        wire.read_result(tmp_path / "a", "materialize")
    assert (caught.value.file, caught.value.line) == ("example.py", line)


def test_in_process_refuses_what_it_cannot_make() -> None:
    host = InProcessHost(get("gemm_reducescatter"))
    with pytest.raises(UnknownShape, match="tiny, odd"):
        host.materialize("huge", 2, 1)
    with pytest.raises(ProblemError, match="cannot be cut into 8 equal parts"):
        host.materialize("odd", 8, 1)
    with pytest.raises(ProblemError, match="seeds end at"):
        host.materialize("odd", 2, 1 << 64)
    with pytest.raises(ProblemError, match="must be positive"):
        host.materialize("odd", 0, 1)


def test_inputs_are_those_the_candidate_gets_even_if_the_reference_overwrites_them(
    tmp_path: Path,
) -> None:
    file = example_file(tmp_path)
    text = file.read_text(encoding="utf-8").replace("y = x.clone()", "y = x")
    file.write_text(
        text.replace("    replicated", '    mutates = frozenset({"x"})\n    replicated')
    )
    problem = load_problem(file)
    made = InProcessHost(problem).materialize("tiny", 2, 1)
    dims = problem.shape("tiny").dims
    factor = 2.0 ** exponent(span_of(problem, dims, 2), 1)
    assert torch.equal(made.inputs[1]["x"], problem.make_inputs(1, 2, 1, dims)["x"] * factor)
