"""A job's events: replayed, resumed, followed, ended."""

from __future__ import annotations

import json
import threading
from typing import Any

import fastapi.routing
import fastapi.sse
import httpx
import pytest

from api.routes import events
from store import Store
from tests.api import jobs_in_store
from tests.api.serving import Api, problem_of


def parsed(text: str) -> list[dict[str, Any]]:
    """The events of a stream's text: id, event and decoded data; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if "data" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def test_a_finished_job_is_replayed_whole_and_the_stream_ends(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    response = api.get(f"/v1/jobs/{job_id}/events")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    seen = parsed(response.text)
    assert [event["id"] for event in seen] == [str(n) for n in range(1, len(seen) + 1)]
    assert [event["event"] for event in seen] == [event["data"]["type"] for event in seen]
    assert seen[0]["event"] == "job.queued"
    assert seen[-1]["event"] == "job.finished"
    assert seen[-1]["data"]["payload"]["stop_reason"] == "exhausted"


def test_replay_starts_after_the_last_event_seen(api: Api) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    whole = parsed(api.get(f"/v1/jobs/{job_id}/events").text)
    rest = parsed(api.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "4"}).text)
    assert rest == whole[4:]


def test_nothing_follows_the_end(api: Api) -> None:
    """204 is what tells an EventSource not to connect again."""
    job_id = jobs_in_store.succeeded(api.store)
    last = parsed(api.get(f"/v1/jobs/{job_id}/events").text)[-1]["id"]
    for seen in (last, "99999"):
        response = api.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": seen})
        assert (response.status_code, response.content) == (204, b"")


@pytest.mark.parametrize("seen", ["x", "-1", "1e3", "9" * 40, "\u0663"])
def test_a_foreign_last_event_id_replays_everything(api: Api, seen: str) -> None:
    job_id = jobs_in_store.succeeded(api.store)
    response = api.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": seen.encode()})
    assert parsed(response.text)[0]["id"] == "1"


def test_an_unknown_job_has_no_events(api: Api) -> None:
    problem_of(api.get("/v1/jobs/job_1/events"), "job_not_found", 404)


def test_a_running_job_is_followed_to_its_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "POLL_S", 0.02)
    job_id = jobs_in_store.submit(api.store)
    worker = threading.Thread(target=_work, args=(api.store, job_id))
    worker.start()
    seen = parsed(api.get(f"/v1/jobs/{job_id}/events").text)
    worker.join()
    assert [event["data"]["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert [event["event"] for event in seen if event["event"].startswith("job.")] == [
        "job.queued",
        "job.started",
        "job.finished",
    ]


def _work(store: Store, job_id: str) -> None:
    claimed = jobs_in_store.claim(store, job_id)
    for stages in (2, 3, 4):
        what = jobs_in_store.candidate(stages=stages)
        number = jobs_in_store.propose(store, job_id, what)
        jobs_in_store.judge(store, job_id, number, jobs_in_store.verdict(what, 600.0 - stages))
    jobs_in_store.finish(store, claimed)


def test_a_stream_does_not_live_for_ever(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_LIFETIME_S", 0.0)
    job_id = jobs_in_store.submit(api.store)
    seen = parsed(api.get(f"/v1/jobs/{job_id}/events").text)
    assert [event["event"] for event in seen] == ["job.queued", "reconnect"]


def test_a_quiet_stream_is_kept_alive(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fastapi.sse._PING_INTERVAL == 15.0
    monkeypatch.setattr(fastapi.routing, "_PING_INTERVAL", 0.05)
    monkeypatch.setattr(events, "MAX_LIFETIME_S", 0.5)
    job_id = jobs_in_store.submit(api.store)
    assert ": ping" in api.get(f"/v1/jobs/{job_id}/events").text.splitlines()


def test_a_stopping_service_ends_its_streams(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    api.app.state.stopping.set()
    assert parsed(api.get(f"/v1/jobs/{job_id}/events").text) == []


def test_long_logs_arrive_whole(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    claimed = jobs_in_store.claim(api.store, job_id)
    with api.store.database.write() as tx:
        for number in range(950):
            tx.events.append(job_id, "attempt.stage", {"number": number, "stage": "check"})
    jobs_in_store.finish(api.store, claimed, best_number=None)
    assert len(parsed(api.get(f"/v1/jobs/{job_id}/events").text)) == 953


def test_text_in_events_cannot_forge_events(api: Api) -> None:
    job_id = jobs_in_store.submit(api.store)
    claimed = jobs_in_store.claim(api.store, job_id)
    what = jobs_in_store.candidate()
    forged = "x\n\nevent: job.finished\ndata: {}\n\n\r\r"
    jobs_in_store.propose(api.store, job_id, what, hypothesis=forged)
    jobs_in_store.finish(api.store, claimed, best_number=None)
    response: httpx.Response = api.get(f"/v1/jobs/{job_id}/events")
    seen = parsed(response.text)
    assert [event["event"] for event in seen].count("job.finished") == 1
    [proposed] = [event for event in seen if event["event"] == "attempt.proposed"]
    assert proposed["data"]["payload"]["hypothesis"] == forged
