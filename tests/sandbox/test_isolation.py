"""The sandbox beyond single commands: start-up check, killed judges, parallel runs, leftovers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pk_runtime.execution import Command, Completed, Executor
from sandbox.isolation import (
    BubblewrapExecutor,
    Finding,
    IsolatedExecutor,
    IsolationUnavailable,
    NamespaceExecutor,
    SandboxFault,
    UnisolatedExecutor,
    cgroup,
    choose,
    choose_for_sessions,
    probe,
    seccomp,
)
from sandbox.isolation.interpreter import interpreter_paths
from tests.sandbox.conformance import run

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_choose_takes_the_strongest_that_holds() -> None:
    executor = choose()
    assert executor.name == "bubblewrap"
    report = executor.capabilities().to_dict()
    assert report["isolated"] is True
    assert "not enforced" not in report.values()


@pytest.mark.slow
def test_choose_does_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.isolation.bubblewrap.shutil.which", lambda *_, **__: None)
    executor = choose()
    assert executor.name == "namespaces"
    report = executor.capabilities().to_dict()
    assert report["isolated"] is True
    assert "not enforced" not in report.values()


def test_choose_takes_namespaces_where_bubblewrap_does_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = {"bubblewrap"}

    def look(executor: Executor) -> list[Finding]:
        return [Finding("network to the host", executor.name not in broken, "allowed")]

    monkeypatch.setattr("sandbox.isolation.probe", look)
    assert choose().name == "namespaces"
    assert choose_for_sessions().name == "namespaces"
    broken.add("namespaces")
    with pytest.raises(IsolationUnavailable, match="network to the host: allowed") as refused:
        choose()
    assert "bubblewrap does not hold" in refused.value.reason
    assert "user namespaces" in refused.value.fix
    with pytest.raises(IsolationUnavailable, match="namespaces does not hold"):
        choose_for_sessions()


def test_another_processor_is_refused_with_the_right_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.isolation.seccomp.platform.machine", lambda: "aarch64")
    with pytest.raises(IsolationUnavailable, match="aarch64") as refused:
        choose()
    assert "x86-64" in refused.value.fix
    assert "--no-isolation" in refused.value.fix


def test_choose_gives_none_only_when_asked() -> None:
    executor = choose(allow_none=True)
    assert isinstance(executor, UnisolatedExecutor)
    assert executor.capabilities().isolated is False


@pytest.mark.slow
def test_the_start_up_check_finds_what_is_not_isolated() -> None:
    """The positive control of the suite itself: without a sandbox it fails where it must."""

    class Careful(UnisolatedExecutor):
        """No isolation; leaves out the one attempt that could exhaust the machine."""

        def run(self, command: Command) -> Completed:
            safe = '"more processes than allowed": lambda: None, #'
            source = command.argv[4].replace('"more processes than allowed":', safe)
            argv = (*command.argv[:4], source, *command.argv[5:])
            return super().run(
                Command(argv, command.workdir, command.read_only, command.env, command.limits)
            )

    failed = {finding.name for finding in probe(Careful()) if not finding.ok}
    assert {"network to the host", "abstract socket of the host", "a file of the host",
            "environment of others", "sight of other processes"} <= failed  # fmt: skip


def test_a_sandbox_that_does_not_start_is_unavailable(
    isolating: IsolatedExecutor, folder: Path
) -> None:
    """Inside a sandbox no other can be made: there choose() refuses, with the fix."""
    source = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, *{sys.path!r}]
from sandbox.isolation import IsolationUnavailable, choose
try: print(choose())
except IsolationUnavailable as error: print("refused:", error.reason, "|", error.fix)
"""
    packages = tuple(ROOT / name for name in ("pk_runtime", "sandbox"))
    done = run(isolating, folder, source, read_only=packages, wall_s=60)
    text = done.stdout.decode()
    assert text.startswith("refused:"), text + done.stderr.decode()
    assert "user namespaces" in text
    assert "--no-isolation" in text


def test_a_failed_sandbox_is_not_the_commands_failure(
    isolating: IsolatedExecutor, folder: Path
) -> None:
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(SandboxFault, match="not a regular file"):
        run(isolating, folder, "pass")


def test_lower_limits_of_the_system_are_kept(folder: Path) -> None:
    source = f"""
from pathlib import Path
from sandbox.isolation import BubblewrapExecutor
from tests.sandbox.conformance import run
program = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
print(run(BubblewrapExecutor(), Path({str(folder)!r}), program).stdout)
"""
    limited = ["/bin/sh", "-c", 'ulimit -n 200 && exec "$@"', "sh"]
    done = subprocess.run(
        [*limited, sys.executable, "-c", source], cwd=ROOT, capture_output=True, check=True
    )
    assert done.stdout == b"b'(200, 200)\\n'\n"


def test_interpreter_paths_cover_this_interpreter() -> None:
    paths = interpreter_paths()
    executable = Path(sys.executable)
    assert executable.is_relative_to("/usr") or any(executable.is_relative_to(p) for p in paths)
    assert not any(path.is_relative_to("/usr") for path in paths)
    assert not any(set(path.parents) & set(paths) for path in paths)


def test_the_filter_is_made_of_whole_instructions() -> None:
    program = seccomp.program()
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096
    assert len(set(seccomp.DENIED.values())) == len(seccomp.DENIED)


@pytest.mark.parametrize("group", ["", "user.slice", "services/one"])
def test_control_groups_of_version_2(tmp_path: Path, group: str) -> None:
    """On a tree of plain files: this machine's kernel may offer only version 1."""
    mount, proc = tmp_path / "cgroup", tmp_path / "proc"
    own = mount / group
    own.mkdir(parents=True)
    proc.mkdir()
    (proc / "cgroup").write_text(f"0::/{group}\n")
    (proc / "mountinfo").write_text(
        f"30 23 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert cgroup.detect(proc) == {}  # the controllers are not enabled: no limit can be set
    for kind in ("memory", "pids"):
        places = cgroup._places(kind, proc)
        between = [own.parent] if own.parent not in (mount, tmp_path) else []
        found = [place for layout, place in places if layout.version == 2]
        assert found == [own, *between, mount]


def test_version_2_limits_memory_and_processes_in_one_place() -> None:
    """A process is in one group only there: limits in two places would leave one of them off."""
    above, root = Path("/sys/fs/cgroup/above"), Path("/sys/fs/cgroup")
    memory, pids = cgroup._LAYOUTS[2, "memory"], cgroup._LAYOUTS[2, "pids"]
    found = cgroup._together(
        {
            "memory": [
                cgroup.Controller("memory", memory, above),
                cgroup.Controller("memory", memory, root),
            ],
            "pids": [cgroup.Controller("pids", pids, root)],
        }
    )
    assert {kind: controller.parent for kind, controller in found.items()} == {
        "memory": root,
        "pids": root,
    }


@pytest.mark.skipif(os.getuid() != 0, reason="control groups are root's")
def test_groups_are_removed_with_what_is_inside(folder: Path) -> None:
    controllers = cgroup.detect()
    if "pids" not in controllers:
        pytest.skip("no pids controller here")
    group = cgroup.Group({controllers["pids"]: 8})
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        for procs in group.procs_files:
            procs.write_text(str(sleeper.pid))
        assert group.members() == {sleeper.pid}
        group.remove()
        assert sleeper.wait(5) == -signal.SIGKILL
    assert not any(procs.parent.exists() for procs in group.procs_files)


def test_executors_are_named(bubblewrap: BubblewrapExecutor) -> None:
    named: list[Executor] = [bubblewrap, NamespaceExecutor(), UnisolatedExecutor()]
    assert [executor.name for executor in named] == ["bubblewrap", "namespaces", "none"]
    error = IsolationUnavailable("reason", "fix")
    assert (error.reason, error.fix, str(error)) == ("reason", "fix", "reason. fix")
