"""Executors and a judge for the tests of this package, each made once."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.isolation import (
    BubblewrapExecutor,
    DockerExecutor,
    IsolatedExecutor,
    NamespaceExecutor,
)
from sandbox.judge import Judge


@pytest.fixture(scope="session")
def bubblewrap() -> BubblewrapExecutor:
    """The isolating executor of this machine."""
    return BubblewrapExecutor()


@pytest.fixture(scope="session")
def namespaces() -> NamespaceExecutor:
    """The isolating executor that needs no program."""
    return NamespaceExecutor()


@pytest.fixture(scope="session")
def docker(docker_host: str) -> DockerExecutor:
    """The isolating executor that asks a Docker engine."""
    return DockerExecutor(docker_host)


@pytest.fixture(params=["bubblewrap", "namespaces", pytest.param("docker", marks=pytest.mark.slow)])
def isolating(request: pytest.FixtureRequest) -> IsolatedExecutor:
    """Every isolating executor of this machine in turn."""
    executor: IsolatedExecutor = request.getfixturevalue(request.param)
    return executor


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder whose path has no surprises in it."""
    path = Path(tempfile.mkdtemp(prefix="pkforge-test-")).resolve()
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def judge_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The judge's cache; its path is in the command line of every program that the judge runs."""
    return tmp_path_factory.mktemp("judge")


@pytest.fixture(scope="session")
def judge(judge_cache: Path, bubblewrap: BubblewrapExecutor) -> Judge:
    """A judge with a cache of its own, in a sandbox."""
    return Judge(cache=judge_cache, executor=bubblewrap)
