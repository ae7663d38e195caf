"""Wake-ups: to the workers that can run the job, and never the reason for an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from store import Settings
from tests.services import free_port
from workers.enqueue import enqueue
from workers.queues import queue_of


@pytest.mark.parametrize(
    ("target", "queue"),
    [
        ("sim:h200x4", "cpu"),
        ("sim:h200x8", "cpu"),
        ("cuda:h200x4", "gpu.h200.x4"),
        ("cuda:h100x1", "gpu.h100.x1"),
    ],
)
def test_queues_are_named_after_what_a_target_needs(target: str, queue: str) -> None:
    assert queue_of(target) == queue


def test_without_a_broker_nothing_is_sent(tmp_path: Path) -> None:
    assert not enqueue(Settings(home=tmp_path), "job_1", "sim:h200x4")


def test_a_message_carries_only_the_id(tmp_path: Path, empty_redis: str) -> None:
    settings = Settings(home=tmp_path, broker_url=empty_redis)
    assert enqueue(settings, "job_1", "cuda:h200x4")
    with redis.Redis.from_url(empty_redis) as client:
        (message,) = client.lrange("gpu.h200.x4", 0, -1)
    document = json.loads(message)
    assert document["headers"]["task"] == "workers.run_job"
    assert document["headers"]["argsrepr"] == "['job_1']"


def test_a_broker_that_is_down_is_no_error(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, broker_url=f"redis://127.0.0.1:{free_port()}/0")
    assert not enqueue(settings, "job_1", "sim:h200x4")
