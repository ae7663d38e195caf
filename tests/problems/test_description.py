"""Descriptions: what they hold, and that nothing malformed is read."""

import dataclasses
import json
from typing import Any

import pytest
import torch

from problems.contract import OutputSpec
from problems.description import Description, describe
from problems.errors import UnknownShape, WireError
from problems.registry import catalogue, get

SLUGS = [problem.slug for problem in catalogue()]


@pytest.mark.parametrize("slug", SLUGS)
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_a_description_survives_json(slug: str, world_size: int) -> None:
    description = describe(get(slug), world_size)
    text = json.dumps(description.to_json(), allow_nan=False)
    assert Description.from_json(json.loads(text)) == description


def test_what_it_says() -> None:
    description = describe(get("gemm_reducescatter"), 4)
    tiny = description.shape("tiny")
    assert tiny.inputs == {
        "a": OutputSpec((64, 32), torch.bfloat16),
        "b": OutputSpec((32, 64), torch.bfloat16),
    }
    assert tiny.outputs == {"c": OutputSpec((16, 64), torch.bfloat16)}
    assert description.reference_code.startswith("def reference(self, group")
    assert "reduce_scatter(c, torch.matmul(a, b), group)" in description.reference_code
    assert tiny.costs == get(16).costs({"M": 64, "N": 64, "K": 128}, 4)
    with pytest.raises(UnknownShape, match="m8192n8192k8192"):
        description.shape("m1")


def test_a_description_without_code_survives_json() -> None:
    description = dataclasses.replace(describe(get("allgather"), 2), reference_code="")
    assert Description.from_json(description.to_json()) == description


def test_shapes_that_do_not_divide_are_left_out() -> None:
    names = [shape.name for shape in describe(get("gemm_reducescatter"), 8).shapes]
    assert "tiny" in names
    assert "odd" not in names


BAD: list[tuple[str, Any]] = [
    ("slug", "../up"),
    ("slug", None),
    ("title", "x" * 201),
    ("title", "bell\x07"),
    ("statement", ["text"]),
    ("tolerance", "T7"),
    ("dtype", "float128"),
    ("number", 1.5),
    ("number", True),
    ("mutates", ["X"]),
    ("input_names", "x"),
    ("input_names", ["x"] * 65),
    ("peer_dims", {"y": -1}),
    ("peer_dims", {"y": 9}),
    ("world_size", 0),
    ("world_size", 1 << 20),
    ("peer_dims", {"y": 3}),
    ("peer_dims", {"z": 0}),
    ("mutates", ["y"]),
    ("input_names", ["y"]),
    ("output_names", []),
    ("output_names", ["y", "z"]),
    ("shapes", {}),
    ("shapes", [None]),
]
BAD_SHAPE: list[tuple[str, Any]] = [
    ("name", "The Tiny"),
    ("kind", "both"),
    ("dims", {"M": 1 << 50}),
    ("dims", dict.fromkeys("ABCDEFGHI", 1)),
    ("inputs", {"x": {"shape": [-1], "dtype": "bfloat16"}}),
    ("inputs", {"x": {"shape": [1.0], "dtype": "bfloat16"}}),
    ("inputs", {"x": {"shape": [1], "dtype": "object"}}),
    ("inputs", {"X Y": {"shape": [1], "dtype": "bfloat16"}}),
    ("outputs", []),
    ("flops", "many"),
    ("flops", float("inf")),
    ("flops", float("nan")),
    ("flops", 10**400),
    ("hbm_bytes", -1),
    ("nvlink_bytes", True),
    ("inputs", {}),
    ("outputs", {}),
    ("name", "odd"),
    ("baseline", None),
    ("baseline", {"gemm": None, "collective": None, "collective_bytes": 0}),
    ("baseline", {"gemm": [1, 0, 1], "collective": None, "collective_bytes": 0}),
    ("baseline", {"gemm": None, "collective": "all_reduce", "collective_bytes": 0}),
    ("baseline", {"gemm": [1, 2], "collective": None, "collective_bytes": 0}),
    ("baseline", {"gemm": None, "collective": "all_sing", "collective_bytes": 0}),
    ("baseline", {"gemm": None, "collective": "all_reduce", "collective_bytes": None}),
    ("baseline", {"gemm": [1, 1, 1], "collective": None, "collective_bytes": 0, "copies": [0]}),
    ("baseline", {"gemm": [1, 1, 1], "collective": None, "collective_bytes": 0, "copies": "8"}),
]


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_malformed_field_is_named(key: str, value: Any) -> None:
    data = describe(get("allgather"), 4).to_json() | {key: value}
    with pytest.raises(WireError, match=rf"{key}|input_names|outputs"):
        Description.from_json(data)


@pytest.mark.parametrize(("key", "value"), BAD_SHAPE)
def test_a_malformed_field_of_a_shape_is_refused(key: str, value: Any) -> None:
    data = describe(get("allgather"), 4).to_json()
    data["shapes"][0][key] = value
    with pytest.raises(WireError, match=r"shapes|inputs|outputs|baseline"):
        Description.from_json(data)


def test_costs_cannot_all_be_zero() -> None:
    data = describe(get("allgather"), 4).to_json()
    data["shapes"][1] |= {"flops": 0, "nvlink_bytes": 0, "hbm_bytes": 0.0}
    with pytest.raises(WireError, match="cannot all be zero"):
        Description.from_json(data)


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_only_an_object_is_a_description(data: Any) -> None:
    with pytest.raises(WireError, match="must be an object"):
        Description.from_json(data)
