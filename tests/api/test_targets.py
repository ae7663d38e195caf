"""Targets over HTTP."""

from __future__ import annotations

from pk_runtime.target import parse_target
from sandbox.gpu.machine import unavailable
from tests.api.serving import Api, problem_of


def test_targets_say_whether_their_times_are_simulated(api: Api) -> None:
    items = {item["name"]: item for item in api.get("/v1/targets").json()["items"]}
    assert items["sim:h200x4"]["kind"] == "simulated"
    assert items["cuda:h200x4"]["kind"] == "measured"
    assert items["sim:h100x8"]["kind"] == items["sim:b200x8"]["kind"] == "uncalibrated"
    assert not {"cuda:h100x8", "cuda:b200x8"} & set(items)
    assert items["sim:h200x4"]["world_size"] == 4
    assert items["sim:h200x2"]["world_size"] == items["cuda:h200x2"]["world_size"] == 2


def test_targets_say_whether_this_machine_can_judge_on_them(api: Api) -> None:
    items = {item["name"]: item for item in api.get("/v1/targets").json()["items"]}
    for name, item in items.items():
        assert item["unavailable_here"] == unavailable(parse_target(name))
    assert items["sim:h200x4"]["unavailable_here"] is None


def test_a_target_shows_its_sheet(api: Api) -> None:
    target = api.get("/v1/targets/sim:h200x4").json()
    assert target["sheet"]["chip"]["sms"] == 132


def test_an_unknown_target_names_the_known_ones(api: Api) -> None:
    document = problem_of(api.get("/v1/targets/sim:h100x4"), "target_not_found", 404)
    assert "sim:h200x4" in document["detail"]
