"""The service as a real process: large uploads, live events, a crash in the middle of a job."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.serving import Process, await_no_processes, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HUGE = 100 << 20
KERNEL = Path(__file__).parents[2] / "pk_runtime" / "kernels" / "allreduce_one_shot.cu"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service that answers requests and runs no jobs."""
    with serving(tmp_path_factory.mktemp("serving"), "--no-workers") as process:
        yield process


class Upload:
    """A huge body that counts how much of it was taken."""

    def __init__(self) -> None:
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        block = b" " * (1 << 20)
        while self.sent < HUGE:
            self.sent += len(block)
            yield block


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/problems", "/v1/evaluations", "/nothing"])
@pytest.mark.parametrize("announced", [True, False])
def test_an_upload_of_100_mb_is_refused_and_not_read(
    service: Process, path: str, announced: bool
) -> None:
    upload = Upload()
    headers = {"content-type": "application/json"}
    if announced:
        headers["content-length"] = str(HUGE)
    response = httpx.post(service.url + path, content=upload, headers=headers, timeout=30)
    expected = "body_too_large" if announced or path != "/nothing" else "route_not_found"
    assert response.json()["code"] == expected
    assert upload.sent < HUGE // 2


def test_the_service_is_unharmed_by_half_requests(service: Process) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    for text in (b"", b"GET", b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(text)
    for text in (b"\x00\xff\x00\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(text + b"\r\n\r\n")
            try:
                while connection.recv(4096):
                    pass
            except ConnectionError:
                continue
    assert httpx.get(f"{service.url}/healthz").status_code == 200


def test_clients_that_leave_do_not_pile_up(service: Process) -> None:
    body = {"problem": "16", "target": "sim:h200x4"}
    job = httpx.post(f"{service.url}/v1/jobs", json=body).json()
    for _ in range(20):
        with httpx.stream("GET", service.url + job["links"]["events"]) as response:
            assert response.status_code == 200
            next(response.iter_lines())
    assert httpx.get(f"{service.url}/healthz").status_code == 200


def test_it_says_nothing_of_itself(service: Process) -> None:
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=10)
    connection.request("GET", "/healthz")
    assert connection.getresponse().getheader("server") is None
    connection.close()


def test_it_ends_at_once_with_open_streams(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-workers") as process:
        job = httpx.post(
            f"{process.url}/v1/jobs", json={"problem": "16", "target": "sim:h200x4"}
        ).json()
        with httpx.stream("GET", process.url + job["links"]["events"], timeout=30) as response:
            lines = response.iter_lines()
            assert "event: job.queued" in [next(lines) for _ in range(4)]
            process.process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass
        # It ends in order, and then by the signal it was sent, as shells and supervisors expect.
        assert process.process.wait(20) == -signal.SIGTERM


def attempts_of(url: str, job_id: str) -> list[dict[str, Any]]:
    page = httpx.get(f"{url}/v1/jobs/{job_id}/attempts", params={"limit": 100}, timeout=30)
    items: list[dict[str, Any]] = page.json()["items"]
    return items


def wait_until(url: str, job_id: str, judged: int, within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if sum(item["status"] != "pending" for item in attempts_of(url, job_id)) >= judged:
            return
        time.sleep(0.1)
    raise AssertionError(f"{job_id} did not get to {judged} judged attempts")


def events_of(url: str, job_id: str) -> list[dict[str, Any]]:
    found = []
    with httpx.stream("GET", f"{url}/v1/jobs/{job_id}/events", timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data:"):
                found.append(json.loads(line[5:]))
    return found


def test_a_killed_service_goes_on_from_the_last_stored_attempt(
    tmp_path: Path, build_cache: Path
) -> None:
    """No attempt is lost, none is made twice, and nothing of the dead service keeps running."""
    source = KERNEL.read_text()
    scripted = [
        {"language": "pk", "files": {"kernel.cu": f"{source}// variant {number}\n"}, "knobs": {}}
        for number in range(4)
    ]
    body = {
        "problem": "allreduce",
        "target": "sim:h200x4",
        "policy": "scripted",
        "scripted": scripted,
        "shape": "tiny",
        "seed": 3,
    }
    with serving(tmp_path, build_cache=str(build_cache)) as first:
        job_id = httpx.post(f"{first.url}/v1/jobs", json=body, timeout=30).json()["id"]
        wait_until(first.url, job_id, judged=2)
        before = [item for item in attempts_of(first.url, job_id) if item["status"] != "pending"]
        first.kill()
    await_no_processes(tmp_path)

    with serving(tmp_path, build_cache=str(build_cache)) as second:
        events = events_of(second.url, job_id)
        after = attempts_of(second.url, job_id)
        job = httpx.get(f"{second.url}/v1/jobs/{job_id}").json()
    assert job["status"] == "succeeded", job
    assert job["runs"] == 2
    assert after[: len(before)] == before
    assert [item["number"] for item in after] == list(range(1, len(after) + 1))
    searched = [item["candidate"] for item in after if item["phase"] == "search"]
    assert len(searched) == len(set(searched)) == 4
    for type in ("attempt.proposed", "attempt.judged"):
        numbers = [e["payload"]["number"] for e in events if e["type"] == type]
        assert numbers == [item["number"] for item in after], type
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def test_an_evaluation_is_judged(tmp_path: Path, build_cache: Path) -> None:
    candidate = {"language": "pk", "files": {"kernel.cu": KERNEL.read_text()}, "knobs": {}}
    body = {"problem": "1", "target": "sim:h200x4", "shapes": ["tiny"], "depth": "quick"}
    broken = candidate | {"files": {"kernel.cu": KERNEL.read_text().replace("void", "vold", 1)}}
    with serving(tmp_path, build_cache=str(build_cache)) as process:
        for what, status in ((candidate, "correct"), (broken, "build_failed")):
            made = httpx.post(
                f"{process.url}/v1/evaluations", json=body | {"candidate": what}, timeout=30
            ).json()
            assert events_of(process.url, made["id"])[-1]["type"] == "job.finished"
            judged = httpx.get(process.url + made["links"]["self"]).json()
            assert judged["status"] == "succeeded"
            assert judged["verdict"]["status"] == status


def test_cancelling_ends_a_running_job_and_its_processes(tmp_path: Path, build_cache: Path) -> None:
    with serving(tmp_path, build_cache=str(build_cache)) as process:
        body = {"problem": "16", "target": "sim:h200x4", "shape": "m8192n8192k8192"}
        job_id = httpx.post(f"{process.url}/v1/jobs", json=body, timeout=30).json()["id"]
        deadline = time.monotonic() + 60
        while not attempts_of(process.url, job_id) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert httpx.post(f"{process.url}/v1/jobs/{job_id}/cancel").status_code == 202
        assert httpx.post(f"{process.url}/v1/jobs/{job_id}/cancel").status_code == 409
        assert events_of(process.url, job_id)[-1]["payload"]["status"] == "cancelled"
        await_no_processes(tmp_path, but=(process.process.pid,))


def test_it_may_listen_elsewhere_when_told_to(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-workers", "--host", "0.0.0.0", "--allow-remote") as process:
        answer = httpx.get(f"{process.url}/healthz", headers={"host": "gpu-box.lan"})
        assert answer.status_code == 200
