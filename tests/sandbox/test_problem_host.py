"""Custom problems run in a sandbox: what they answer, and what their code cannot do."""

import inspect
import textwrap
from pathlib import Path

import pytest
import torch

from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped_kernel
from pk_runtime.target import parse_target
from problems.contract import HIDDEN
from problems.errors import ProblemError, UnknownShape
from problems.hosting import InProcessHost
from problems.loading import load_problem
from problems.registry import get
from sandbox import problem_host
from sandbox.isolation import BubblewrapExecutor
from sandbox.judge import Judge
from sandbox.problem_host import CustomProblem, SandboxedHost, digest_of, open_host
from tests.sandbox.conformance import gone

GOOD = '''
"""Twice the sum of all ranks' x."""

import torch.distributed as dist

from pk_runtime.baseline import BaselineWork
from problems.contract import Costs, Problem, bench, check


class Doubled(Problem):
    slug = "doubled_allreduce"
    title = "All-reduce, doubled"
    category = "Collective"
    statement = """Every rank holds x[M, N] in bf16 and returns y[M, N], twice the sum of x."""
    tolerance = "T1"
    input_names = ("x",)
    output_names = ("y",)
    shapes = (check("tiny", M=32, N=64), check("odd", M=33, N=65), bench(M=1024, N=1024))

    def input_specs(self, dims, world_size):
        return {"x": self.spec(dims["M"], dims["N"])}

    def output_specs(self, dims, world_size):
        return {"y": self.spec(dims["M"], dims["N"])}

    def reference(self, group, x):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return {"y": y + y}

    def golden(self, inputs):
        total = 2 * sum(rank["x"].double() for rank in inputs)
        return [{"y": total} for _ in inputs]

    def costs(self, dims, world_size):
        size = dims["M"] * dims["N"]
        share = (world_size - 1) / world_size
        return Costs(share * size, 4 * share * size, 4 * size,
                     BaselineWork(None, "all_reduce", 2 * size))
'''
SPY = "\nimport os, pathlib, socket, sys, time\n"


def host(source: str, bubblewrap: BubblewrapExecutor, folder: Path) -> SandboxedHost:
    return SandboxedHost(CustomProblem(source), bubblewrap, folder)


def spying(body: str) -> str:
    """The good problem; its file also runs `body` when it is loaded."""
    return GOOD + SPY + textwrap.dedent(body)


@pytest.mark.slow
def test_answers_are_those_of_the_same_code_in_process(
    bubblewrap: BubblewrapExecutor, folder: Path
) -> None:
    """A catalogue problem's own file, renamed: the sandbox must change nothing."""
    file = Path(inspect.getfile(type(get("allreduce"))))
    source = file.read_text().replace('= 1, "allreduce"', '= None, "mine"')
    inside, outside = host(source, bubblewrap, folder), InProcessHost(get("allreduce"))
    description = inside.describe(2)
    assert description.slug == "mine"
    assert description.shapes == outside.describe(2).shapes
    made = inside.materialize("odd", 2, 7)
    assert [t.dtype for rank in made.golden for t in rank.values()] == [torch.float64] * 2
    total = sum(rank["x"].double() for rank in made.inputs)
    assert isinstance(total, torch.Tensor)
    assert torch.equal(made.golden[0]["y"], total)
    assert set(inside.defective("tiny", 2, 7)) == {"local", "without:0", "without:1", "twice:0",
                                                   "twice:1"}  # fmt: skip
    with pytest.raises(UnknownShape, match="tiny"):
        inside.materialize("huge", 2, 7)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_hidden_shapes_are_drawn_there_as_in_process(
    bubblewrap: BubblewrapExecutor, folder: Path
) -> None:
    plain = host(GOOD, bubblewrap, folder)
    inside = plain.with_hidden(11, 2)
    (folder / "good.py").write_text(GOOD)
    outside = InProcessHost(load_problem(folder / "good.py")).with_hidden(11, 2)
    assert inside.describe(2).shapes == outside.describe(2).shapes
    assert [shape.name for shape in inside.describe(2).shapes[-2:]] == list(HIDDEN)
    made, expected = (each.materialize("hidden_1", 2, 7) for each in (inside, outside))
    assert torch.equal(made.reference[1]["y"], expected.reference[1]["y"])
    with pytest.raises(UnknownShape, match="hidden_1"):
        plain.materialize("hidden_1", 2, 7)
    lying = spying("""
        import problems.hidden
        larger = (check("hidden_1", M=4096, N=64),)
        problems.hidden.hidden_shapes = lambda *arguments: larger
    """)
    with pytest.raises(ProblemError, match="not of sizes between its check shapes'"):
        host(lying, bubblewrap, folder).with_hidden(11, 2).describe(2)


@pytest.mark.slow
def test_the_lint_runs_there_too(bubblewrap: BubblewrapExecutor, folder: Path) -> None:
    assert host(GOOD, bubblewrap, folder).lint().ok
    silent = (
        GOOD.replace("dist.all_reduce(y, group=group)", "pass")
        .replace('2 * sum(rank["x"].double() for rank in inputs)', "None")
        .replace('{"y": total} for _ in inputs', '{"y": 2 * rank["x"].double()} for rank in inputs')
    )
    report = host(silent, bubblewrap, folder).lint()
    assert not report.ok
    assert any(finding.check == "local" for finding in report.findings)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_candidates_are_judged_on_custom_problems(judge: Judge) -> None:
    right = shipped_kernel("allreduce_one_shot").source.replace(
        "store(self, out.acquire(), sum);",
        "map(self, sum, [](float v, int, int) { return 2.0f * v; }); "
        "store(self, out.acquire(), sum);",
    )
    target = parse_target("sim:h200x4")
    problem = CustomProblem(GOOD)
    verdict = judge.evaluate(Candidate("pk", {"kernel.cu": right}), problem, target, depth="quick")
    assert verdict.status == "correct", verdict.summary
    assert verdict.problem == "doubled_allreduce"
    assert verdict.versions["problem"] == problem.digest[:16]
    wrong = judge.evaluate(shipped_kernel("allreduce_one_shot"), problem, target, depth="quick")
    assert wrong.status == "wrong_output"
    assert "0.5 times" in wrong.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('on purpose')", "on purpose"),
        ("raise SystemExit(0)", ""),
        ("os._exit(0)", "no answer"),
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), 11)", "signal 11"),
        ("print('x' * (1 << 25), flush=True)", "output limit"),
        ("pathlib.Path('result.json').write_text('[' * 100000); os._exit(0)", "JSON"),
        ("pathlib.Path('result.json').symlink_to('/etc/passwd'); os._exit(0)", "no answer"),
        ("pathlib.Path('result.json').write_text('{\"format\": 1}'); os._exit(0)", "answer"),
        ("class Other(Doubled): pass\nclass Third(Problem): pass", ""),
        ("del Doubled", "exactly one"),
    ],
    ids=lambda text: text[:30],
)
def test_bad_files_are_the_authors(
    body: str, words: str, bubblewrap: BubblewrapExecutor, folder: Path
) -> None:
    with pytest.raises(ProblemError) as raised:
        host(spying(body), bubblewrap, folder).describe()
    assert words in str(raised.value)
    assert str(folder) not in str(raised.value)


@pytest.mark.slow
def test_a_file_that_never_ends(
    bubblewrap: BubblewrapExecutor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_host, "WALL_S", {"describe": 3.0})
    with pytest.raises(ProblemError, match="took more than 3 s"):
        host(spying("while True: pass"), bubblewrap, folder).describe()
    assert gone(folder.name)  # it is in the command line of the sandbox


@pytest.mark.slow
def test_a_file_finds_nothing_of_the_machine(bubblewrap: BubblewrapExecutor, folder: Path) -> None:
    (folder / "secret").write_text("key")
    (folder / "secret").chmod(0o644)
    body = f"""
        def denied(action):
            try: action()
            except OSError: return
            raise RuntimeError("allowed")
        denied(lambda: open({str(folder / "secret")!r}))
        denied(lambda: open("/etc/passwd"))
        denied(lambda: open("/usr/written", "w"))
        package = os.path.dirname(sys.modules["problems"].__file__)
        denied(lambda: open(os.path.join(package, "x"), "w"))
        denied(lambda: socket.create_connection(("192.0.2.1", 80), 2))
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try: text = open(f"/proc/{{pid}}/environ", "rb").read()
            except OSError: continue
            if pid != str(os.getpid()) and text: raise RuntimeError(text)
        open("written", "w")
        if os.fork() == 0: os.setsid(); time.sleep(600)
    """
    description = host(spying(body), bubblewrap, folder).describe()
    assert description.slug == "doubled_allreduce"
    assert gone(folder.name)


def test_sources_are_told_apart(bubblewrap: BubblewrapExecutor, folder: Path) -> None:
    custom = CustomProblem(GOOD)
    assert isinstance(open_host(custom, bubblewrap, folder), SandboxedHost)
    assert isinstance(open_host(get("alltoall"), bubblewrap, folder), InProcessHost)
    digests = {digest_of(custom), digest_of(get("alltoall")), digest_of(get("allreduce")),
               digest_of(CustomProblem(GOOD + "\n"))}  # fmt: skip
    assert len(digests) == 4
    assert all(len(digest) == 64 for digest in digests)
