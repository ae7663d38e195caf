"""Problem files of users: what is loaded, and what a bad file is told."""

from pathlib import Path

import pytest

from problems.errors import InvalidProblem, ProblemError
from problems.lint.controls import lint
from problems.loading import MAX_FILE_BYTES, load_problem
from tests.problems.samples import example_file


def changed(folder: Path, old: str, new: str) -> Path:
    """The documented example with one change."""
    path = example_file(folder)
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_the_documented_example_is_admitted(tmp_path: Path) -> None:
    problem = load_problem(example_file(tmp_path))
    assert problem.slug == "scaled_allreduce"
    report = lint(problem)
    assert report.ok, report.findings


def refused(path: Path) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        load_problem(path)
    assert caught.value.file == path.name
    return caught.value


def test_a_syntax_error_has_its_line(tmp_path: Path) -> None:
    error = refused(changed(tmp_path, "class ScaledAllReduce(Problem):", "class ScaledAllReduce(:"))
    assert error.line == 9
    assert "SyntaxError" in str(error)


def test_an_import_error_has_its_line(tmp_path: Path) -> None:
    error = refused(changed(tmp_path, "import torch.distributed as dist", "import no_such_thing"))
    assert error.line == 3
    assert "No module named 'no_such_thing'" in str(error)


def test_an_error_in_a_method_has_its_line(tmp_path: Path) -> None:
    error = refused(changed(tmp_path, 'self.spec(dims["M"], 1)', 'self.spec(dims["Q"], 1)'))
    assert "KeyError: 'Q'" in str(error)
    lines = (tmp_path / "example.py").read_text(encoding="utf-8").splitlines()
    assert error.line is not None
    assert 'dims["Q"]' in lines[error.line - 1]


def test_a_file_that_exits_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "exits.py"
    path.write_text("import sys\nsys.exit(0)\n")
    assert refused(path).line == 2


def test_no_problem_and_two_problems(tmp_path: Path) -> None:
    path = tmp_path / "none.py"
    path.write_text("from problems.contract import Problem\n")
    assert "exactly one subclass of problems.contract.Problem; found: none" in str(refused(path))
    path.write_text(
        "from problems.contract import Problem\nclass A(Problem): pass\nclass B(Problem): pass\n"
    )
    assert "found: A, B" in str(refused(path))


def test_a_base_class_of_the_problem_does_not_count(tmp_path: Path) -> None:
    path = changed(
        tmp_path,
        "class ScaledAllReduce(Problem):",
        "class Base(Problem):\n    pass\n\n\nclass ScaledAllReduce(Base):",
    )
    assert load_problem(path).slug == "scaled_allreduce"


def test_missing_methods_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "abstract.py"
    path.write_text("from problems.contract import Problem\n\nclass A(Problem): pass\n")
    error = refused(path)
    assert isinstance(error, InvalidProblem)
    assert "A does not implement costs, golden, input_specs, output_specs, reference" in str(error)
    assert error.line == 3


def test_breaches_are_listed_together(tmp_path: Path) -> None:
    path = changed(tmp_path, 'tolerance = "T1"', 'tolerance = "T8"\n    peak = "x"')
    error = refused(path)
    assert "- `tolerance` must be one of T0, T1, T2, T3." in str(error)
    assert "- `peak` must be one of" in str(error)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ('slug = "allreduce"', "taken by the catalogue"),
        ('number = 1\n    slug = "scaled_allreduce"', "numbers belong to the catalogue"),
    ],
)
def test_the_catalogue_s_names_are_taken(new: str, message: str, tmp_path: Path) -> None:
    assert message in str(refused(changed(tmp_path, 'slug = "scaled_allreduce"', new)))


def test_files_that_cannot_be_code(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in str(refused(tmp_path / "absent.py"))
    text = tmp_path / "problem.txt"
    text.write_text("x = 1\n")
    assert "end in .py" in str(refused(text))
    large = tmp_path / "large.py"
    large.write_text("#" * (MAX_FILE_BYTES + 1))
    assert f"{MAX_FILE_BYTES} are allowed" in str(refused(large))
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\x00\xff\xfe")
    assert refused(binary).file == "binary.py"
