"""`pkforge job ...` against a real service."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.api import jobs_in_store
from tests.api.cli.conftest import Run, Served

GEMM = ("gemm_reducescatter", "--target", "sim:h200x4")


def submitted(served: Served) -> dict[str, Any]:
    with served.store.database.read() as tx:
        [job] = tx.jobs.page("optimization")
    spec: dict[str, Any] = job.spec
    return spec


def test_submit_prints_the_id_alone_on_stdout(run: Run, served: Served) -> None:
    ran = run("job", "submit", *GEMM, "--attempts", "3", "--seed", "5", "--target-speedup", "1.5")
    assert ran.code == 0, ran.err
    assert ran.out.strip().startswith("job_")
    assert len(ran.out.splitlines()) == 1
    assert f"pkforge job watch {ran.out.strip()}" in ran.err
    spec = submitted(served)
    assert (spec["budget"]["attempts"], spec["seed"], spec["target_speedup"]) == (3, 5, 1.5)


def test_submit_as_json_prints_one_object(run: Run, served: Served) -> None:
    ran = run("job", "submit", *GEMM, "--json")
    assert json.loads(ran.out)["status"] == "queued"


def test_a_folder_of_candidates_is_sent(run: Run, served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "1.cu").write_text(jobs_in_store.SOURCE)
    (folder / "2.cu").write_text(jobs_in_store.SOURCE)
    (folder / "2.json").write_text('{"stages": 4}')
    ran = run("job", "submit", *GEMM, "--scripted", str(folder))
    assert ran.code == 0, ran.err
    spec = submitted(served)
    assert spec["policy"] == "scripted"
    assert [candidate["knobs"] for candidate in spec["scripted"]] == [{}, {"stages": 4}]


def test_a_starting_kernel_is_sent(run: Run, served: Served, tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(jobs_in_store.SOURCE)
    assert run("job", "submit", *GEMM, "--start-from", "mine.cu").code == 0
    assert submitted(served)["start_from"]["files"] == {"kernel.cu": jobs_in_store.SOURCE}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("gemm_reducescater", "--target", "sim:h200x4"), 3, "Did you mean gemm_reducescatter"),
        (("gemm_reducescatter", "--target", "sim:none"), 3, "sim:h200x4"),
        ((*GEMM, "--policy", "guess"), 2, "tuner"),
        ((*GEMM, "--shape", "huge"), 2, "m8192n8192k8192"),
        ((*GEMM, "--attempts", "0"), 2, "--attempts"),
        ((*GEMM, "--target-speedup", "-1"), 2, "#/target_speedup"),
        ((*GEMM, "--scripted", "nowhere"), 3, "nowhere"),
        ((*GEMM, "--start-from", "nowhere.cu"), 3, "nowhere.cu"),
        (("gemm_reducescatter",), 2, "--target"),
        (("gemm_reducescatter", "--target", "cuda:h200x4"), 2, "sim:h200x4"),
    ],
)
def test_a_bad_submission_says_what_is_wrong(
    run: Run, served: Served, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = run("job", "submit", *arguments)
    assert (ran.code, ran.out) == (code, ""), ran.err
    assert said in ran.err


def test_list_shows_the_newest_first(run: Run, served: Served) -> None:
    made = [jobs_in_store.submit(served.store) for _ in range(3)]
    ran = run("job", "list", "--limit", "2")
    assert [line.split()[0] for line in ran.out.splitlines()[1:]] == made[:0:-1]
    listed = json.loads(run("job", "list", "--json").out)
    assert [job["id"] for job in listed] == made[::-1]


def test_show_prints_the_attempts(run: Run, served: Served) -> None:
    job_id = jobs_in_store.succeeded(served.store)
    ran = run("job", "show", job_id)
    assert ran.code == 0
    for text in (
        "time (simulated)",
        "500 us",
        "2.000x",
        "build_failed",
        "stages=4",
        "nvlink",
        "exhausted",
    ):
        assert text in ran.out
    assert len(json.loads(run("job", "show", job_id, "--json").out)["attempts"]) == 3


def test_hostile_text_cannot_drive_the_terminal(run: Run, served: Served) -> None:
    job_id = jobs_in_store.submit(served.store)
    jobs_in_store.claim(served.store, job_id)
    what = jobs_in_store.candidate()
    number = jobs_in_store.propose(served.store, job_id, what)
    given = jobs_in_store.verdict(what, 500.0)
    hostile = "[red]x[/red]\x1b]0;owned\x07\x1b[2J"
    timing = given.timings[0].to_json() | {"bottleneck": hostile}
    changed = type(given).from_json(given.to_json() | {"timings": [timing]})
    jobs_in_store.judge(served.store, job_id, number, changed)
    ran = run("job", "show", job_id)
    assert "\x1b" not in ran.out
    assert "\x07" not in ran.out
    assert "[red]x[/red]\\x1b" in ran.out


def test_watching_a_finished_job_replays_it(run: Run, served: Served) -> None:
    job_id = jobs_in_store.succeeded(served.store)
    ran = run("job", "watch", job_id)
    assert ran.code == 0
    assert "attempt 2 (search): correct, 500 us simulated, 2.000x baseline" in ran.err
    assert f"pkforge job download {job_id}" in ran.out


def test_watch_as_json_prints_one_event_a_line(run: Run, served: Served) -> None:
    job_id = jobs_in_store.succeeded(served.store)
    ran = run("job", "watch", job_id, "--json")
    events = [json.loads(line) for line in ran.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "job.finished"


def test_watch_follows_a_job_that_runs(run: Run, served: Served) -> None:
    job_id = jobs_in_store.submit(served.store)
    claimed = jobs_in_store.claim(served.store, job_id)

    def work() -> None:
        time.sleep(0.7)
        jobs_in_store.finish(
            served.store,
            claimed,
            None,
            state="failed",
            stop_reason="exhausted",
            best_number=None,
            error={"summary": "Nothing was correct."},
        )

    worker = threading.Thread(target=work)
    worker.start()
    ran = run("job", "watch", job_id)
    worker.join()
    assert ran.code == 1
    assert "Nothing was correct." in ran.out


@pytest.mark.parametrize(
    ("state", "reason", "goal", "code"),
    [
        ("succeeded", "exhausted", None, 0),
        ("succeeded", "target_reached", 1.5, 0),
        ("succeeded", "plateaued", 9.0, 1),
        ("succeeded", "budget_attempts", 9.0, 6),
        ("failed", "budget_usd", None, 6),
        ("failed", "exhausted", None, 1),
        ("failed", "infra", None, 5),
        ("cancelled", "cancelled", None, 1),
    ],
)
def test_the_exit_code_tells_the_outcome(
    run: Run, served: Served, state: str, reason: str, goal: float | None, code: int
) -> None:
    job_id = jobs_in_store.submit(served.store, target_speedup=goal)
    claimed = jobs_in_store.claim(served.store, job_id)
    jobs_in_store.finish(
        served.store, claimed, None, state=state, stop_reason=reason, best_number=None
    )
    assert run("job", "watch", job_id).code == code


def test_watching_can_end_before_the_job(run: Run, served: Served) -> None:
    job_id = jobs_in_store.submit(served.store)
    ran = run("job", "watch", job_id, "--timeout", "0.3")
    assert (ran.code, ran.out) == (7, "")
    assert "--timeout" in ran.err


def test_ctrl_c_detaches_and_says_how_to_cancel(
    run: Run, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from api.cli.client import ServiceClient

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ServiceClient, "events", interrupted)
    job_id = jobs_in_store.submit(served.store)
    ran = run("job", "watch", job_id)
    assert (ran.code, ran.out) == (130, "")
    assert f"pkforge job cancel {job_id}" in ran.err


def test_cancelling_twice_is_a_usage_error(run: Run, served: Served) -> None:
    job_id = jobs_in_store.submit(served.store)
    assert run("job", "cancel", job_id).code == 0
    ran = run("job", "cancel", job_id)
    assert (ran.code, ran.out) == (2, "")
    assert "requested before" in ran.err


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "download"])
def test_an_unknown_job_is_not_found(run: Run, served: Served, command: str) -> None:
    ran = run("job", command, "job_1/../../x")
    assert (ran.code, ran.out) == (3, "")
    assert "job_1" in ran.err


def test_download_writes_the_bundle_once(run: Run, served: Served, tmp_path: Path) -> None:
    job_id = jobs_in_store.succeeded(served.store)
    ran = run("job", "download", job_id)
    path = Path(ran.out.strip())
    assert path.suffix == ".zip"
    assert (tmp_path / path).read_bytes() == b"a zip"
    again = run("job", "download", job_id)
    assert again.code == 2
    assert "--force" in again.err
    assert run("job", "download", job_id, "--force").code == 0
    told = json.loads(run("job", "download", job_id, "-o", "sub/k.zip", "--json").out)
    assert told["sha256"] == hashlib.sha256(b"a zip").hexdigest()
    assert (tmp_path / "sub" / "k.zip").exists()


def test_download_without_a_kernel_says_why(run: Run, served: Served) -> None:
    ran = run("job", "download", jobs_in_store.submit(served.store))
    assert ran.code == 1
    assert "no kernel yet" in ran.err
