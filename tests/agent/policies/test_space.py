"""The space of kernels and knob values."""

from __future__ import annotations

import pytest

from agent.policies.space import Point, Space
from pk_runtime.candidate import Candidate
from tests.agent.analytic import kernel

OTHER = Candidate("pk", {"kernel.cu": 'PK_KERNEL(o, knob("chunk", 2, {1, 2, 4}));'})
FIXED = Candidate("pk", {"kernel.cu": "PK_KERNEL(f);"})


def test_every_point_is_numbered_once() -> None:
    space = Space([kernel(), OTHER, FIXED])
    points = [space.at(index) for index in range(space.size)]
    assert len(set(points)) == space.size == 5 * 5 * 6 * 2 + 3 + 1
    for outside in (-1, space.size):
        with pytest.raises(IndexError):
            space.at(outside)


def test_points_and_candidates_belong_together() -> None:
    space = Space([kernel(), OTHER])
    for index in range(0, space.size, 7):
        point = space.at(index)
        assert space.locate(space.candidate(point)) == point
    assert space.locate(FIXED) is None


def test_the_default_point_is_the_candidate_as_given() -> None:
    given = kernel(stages=5)
    space = Space([given])
    assert space.candidate(space.default(0)) is given
    assert space.default(0).values[0] == 5


def test_knobs_at_their_default_are_left_out() -> None:
    space = Space([kernel(stages=5)])
    assert space.candidate(Point(0, (3, 1, 8, 0))).knobs == {"comm_sms": 8}


def test_neighbours_differ_in_one_knob_nearest_first() -> None:
    space = Space([kernel()])
    here = Point(0, (2, 4, 20, 1))
    near = space.neighbours(here)
    assert len(near) == len(set(near)) == 4 + 4 + 5 + 1
    assert set(near[:6]) == {
        Point(0, (3, 4, 20, 1)),
        Point(0, (2, 8, 20, 1)),
        Point(0, (2, 2, 20, 1)),
        Point(0, (2, 4, 24, 1)),
        Point(0, (2, 4, 16, 1)),
        Point(0, (2, 4, 20, 0)),
    }
    for point in near:
        assert sum(a != b for a, b in zip(point.values, here.values, strict=True)) == 1


def test_a_direction_that_paid_is_followed_first() -> None:
    space = Space([kernel()])
    near = space.neighbours(Point(0, (2, 4, 20, 1)), came_from=Point(0, (2, 8, 20, 1)))
    assert near[:2] == [Point(0, (2, 2, 20, 1)), Point(0, (2, 1, 20, 1))]


def test_changes_name_the_knobs() -> None:
    space = Space([kernel()])
    said = space.changes(Point(0, (3, 1, 4, 0)), Point(0, (5, 1, 4, 1)))
    assert said == "stages 3 -> 5, rotate 0 -> 1"
