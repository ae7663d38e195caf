"""Every executor passes the conformance list, as root and as a normal user."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pk_runtime.execution import LocalExecutor
from sandbox.isolation import (
    BubblewrapExecutor,
    DockerExecutor,
    NamespaceExecutor,
    UnisolatedExecutor,
)
from tests.sandbox import (  # noqa: F401 - each adds to the list
    conformance_commands,
    conformance_escapes,
    conformance_isolation,
    conformance_judges,
)
from tests.sandbox.conformance import BEHAVIOURS, Behaviour

ROOT = Path(__file__).resolve().parent.parent.parent
USER = 12345


def every_one(behaviour: Behaviour) -> str:
    return behaviour.case.__name__


@pytest.mark.parametrize("behaviour", [b for b in BEHAVIOURS if not b.isolated], ids=every_one)
def test_local(behaviour: Behaviour, folder: Path) -> None:
    behaviour.case(LocalExecutor(), folder)


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=every_one)
def test_bubblewrap(behaviour: Behaviour, bubblewrap: BubblewrapExecutor, folder: Path) -> None:
    behaviour.case(bubblewrap, folder)


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=every_one)
def test_namespaces(behaviour: Behaviour, namespaces: NamespaceExecutor, folder: Path) -> None:
    behaviour.case(namespaces, folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=every_one)
def test_docker(behaviour: Behaviour, docker: DockerExecutor, folder: Path) -> None:
    behaviour.case(docker, folder)


def test_no_isolation_is_the_local_executor() -> None:
    assert isinstance(UnisolatedExecutor(), LocalExecutor)
    report = UnisolatedExecutor().capabilities()
    assert not report.isolated
    assert report.network == report.filesystem == report.processes == "not enforced"


def test_the_list_is_long_enough() -> None:
    names = [behaviour.name for behaviour in BEHAVIOURS]
    assert len(set(names)) == len(names) >= 45


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("backend", ["bubblewrap", "namespaces"])
def test_as_a_normal_user(backend: str, folder: Path) -> None:
    """The same list, in a process without root's rights and usually without control groups."""
    listed = subprocess.run(
        ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "test", "-x",
         sys.executable, "-a", "-r", str(ROOT / "sandbox")], check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("the interpreter lies where other users may not go")
    folder.chmod(0o777)
    done = subprocess.run(
        ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", sys.executable, "-m",
         "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--basetemp={folder}/pytest",
         "tests/sandbox/test_conformance.py", "-k", f"test_{backend} and not normal_user"],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
        env={"HOME": str(folder), "TMPDIR": str(folder), "PATH": "/usr/bin:/bin",
             "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
