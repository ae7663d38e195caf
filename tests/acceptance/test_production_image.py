"""The production image: built by `docker build`, run as docker-compose.yml says, and judging.

PostgreSQL and Redis are real servers of this machine instead of containers, since there is no
registry to take their images from, and the containers share the machine's network.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from pk_runtime.kernels import shipped_kernel
from tests.docker_engine import call
from tests.production_image import build, inspected, isolation_of, service
from tests.services import Postgres, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

READY_S = 120.0
VERDICT_S = 300.0
TARGET = "sim:h200x4"


@dataclass(frozen=True)
class Image:
    """The image on an engine."""

    host: str
    name: str

    @contextlib.contextmanager
    def run(self, *options: str, command: list[str]) -> Iterator[Container]:
        """A container that runs a command until the end of the block."""
        name = call(self.host, "run", "--detach", *options, self.name, *command)
        try:
            yield Container(self.host, name)
        finally:
            call(self.host, "rm", "--force", "--volumes", name)


@dataclass(frozen=True)
class Container:
    """A running container."""

    host: str
    name: str

    def tell(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command inside."""
        return subprocess.run(
            ["docker", "--host", self.host, "exec", self.name, *command],
            capture_output=True, text=True, timeout=READY_S, check=False,
        )  # fmt: skip

    def log(self) -> str:
        """What its first process said, the end of it."""
        argv = ["docker", "--host", self.host, "logs", "--tail", "40", self.name]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=READY_S, check=False)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def image(docker_host: str) -> Image:
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("a base image can only be made by root, with debootstrap")
    return Image(docker_host, build(docker_host))


def awaited(api: Container, port: int) -> None:
    """Waits until the health check of docker-compose.yml is satisfied."""
    check = service("api")["healthcheck"]
    assert isinstance(check, dict)
    kind, *test = [word.replace(":8770", f":{port}") for word in check["test"]]
    assert kind == "CMD"
    deadline = time.monotonic() + READY_S
    while (done := api.tell(*test)).returncode:
        assert time.monotonic() < deadline, done.stderr[-500:] + api.log()
        time.sleep(0.5)


def command_of(name: str) -> list[str]:
    """A service's command; it listens on loopback here, since the network is the machine's."""
    words = service(name)["command"]
    assert isinstance(words, list)
    return [word.replace("0.0.0.0", "127.0.0.1") for word in words]


def doctor(container: Container) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code of `pkforge doctor` inside, and its lines: {what: (state, reason)}."""
    done = container.tell("pkforge", "doctor")
    found = {}
    for line in (done.stdout + done.stderr).splitlines():
        words = line.split(None, 2)
        if words and words[0] in {"ok", "missing", "optional"}:
            found[words[1]] = (words[0], words[2])
    return done.returncode, found


def test_the_image_runs_as_an_ordinary_user(image: Image) -> None:
    assert inspected(image.host, "{{.Config.User}}") == "pkforge"
    with image.run("--network", "none", command=["sleep", "60"]) as idle:
        assert idle.tell("pkforge", "--version").returncode == 0
        assert idle.tell("touch", "/app/mine").returncode != 0
        assert idle.tell("touch", "/var/lib/pkforge/mine").returncode == 0


def test_an_evaluation_passes_through_service_and_worker(
    image: Image, postgres: Postgres, redis_url: str
) -> None:
    port = free_port()
    settings = {
        "PKFORGE_DATABASE_URL": postgres.create_database(migrated=False),
        "PKFORGE_BROKER_URL": redis_url,
        "PKFORGE_PORT": str(port),
    }
    options = [*isolation_of(service("api")), "--network", "host"]
    options += [part for name, value in settings.items() for part in ("--env", f"{name}={value}")]
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(image.run(*options, command=command_of("api")))
        awaited(api, port)
        options += ["--volumes-from", api.name]
        worker = stack.enter_context(image.run(*options, command=command_of("worker")))
        code, found = doctor(worker)
        assert code == 0, found
        assert found["bubblewrap"][0] == found["namespaces"][0] == "ok", found
        assert found["database"][0] == "ok"
        assert found["docker"][0] == "optional"
        client = stack.enter_context(httpx.Client(base_url=url, timeout=30))
        verdict = judged(client, shipped_kernel("alltoall").source, worker)
        assert verdict["status"] == "correct", verdict
        assert verdict["isolation"]["isolated"] is True
        assert verdict["isolation"]["backend"].startswith("bubblewrap")
        broken = shipped_kernel("alltoall").source.replace(
            "store_async(", "if (false) store_async("
        )
        assert judged(client, broken, worker)["status"] == "crashed"
        assert client.get("/readyz").status_code == 200


def judged(client: httpx.Client, source: str, worker: Container) -> dict[str, Any]:
    """The verdict of the service on a kernel for alltoall."""
    body = {
        "candidate": {"language": "pk", "files": {"kernel.cu": source}, "knobs": {}},
        "problem": "alltoall", "target": TARGET, "shapes": ["m1024n1024"], "depth": "quick",
    }  # fmt: skip
    answer = client.post("/v1/evaluations", json=body)
    assert answer.status_code == 202, answer.text
    deadline = time.monotonic() + VERDICT_S
    while True:
        found = client.get(answer.headers["Location"]).json()
        if found["verdict"] is not None:
            verdict: dict[str, Any] = found["verdict"]
            return verdict
        assert time.monotonic() < deadline, f"{found}\n{worker.log()}"
        time.sleep(0.5)


def test_without_what_the_sandbox_needs_nothing_is_judged(image: Image) -> None:
    """Docker's default profile, which docker-compose.yml lifts: the judge refuses to work."""
    with image.run("--network", "none", command=["sleep", "120"]) as plain:
        code, found = doctor(plain)
        assert code == 1
        state, reason = found["isolation"]
        assert state == "missing"
        assert "no back end of the sandbox holds" in reason
        assert "Operation not permitted" in found["bubblewrap"][1]
        kernel = "/app/pk_runtime/kernels/alltoall.cu"
        done = plain.tell("pkforge", "eval", kernel, "--problem", "alltoall", "--target", TARGET)
        assert done.returncode == 5
        said = " ".join(done.stderr.split())
        assert "the candidate was not run" in said
        assert "user namespaces" in said
        assert "correct" not in done.stdout
