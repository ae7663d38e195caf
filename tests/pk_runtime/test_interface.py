"""Shapes as formulas: inferred from samples, solved for sizes never seen."""

import json
from typing import Any

import pytest
import torch

from pk_runtime.interface import Interface, InterfaceError, Sample, Tensors

BF16 = torch.bfloat16
GEMM = Interface(
    {"a": Tensors(("M", "K/W"), BF16), "b": Tensors(("K/W", "N"), BF16)},
    {"c": Tensors(("M/W", "N"), torch.float32)},
)


def gemm(m: int, n: int, k: int, w: int) -> Sample:
    return Sample(
        {"M": m, "N": n, "K": k},
        w,
        {"a": ((m, k // w), BF16), "b": ((k // w, n), BF16)},
        {"c": ((m // w, n), torch.float32)},
    )


def test_formulas_are_inferred_from_samples() -> None:
    samples = [gemm(64, 64, 128, 2), gemm(64, 64, 128, 4), gemm(100, 129, 132, 4)]
    assert Interface.infer(samples) == GEMM


def test_world_and_constant_axes_are_inferred() -> None:
    samples = [
        Sample({"M": m}, w, {"x": ((w, m, 8), BF16)}, {"y": ((m * w,), BF16)})
        for m, w in ((3, 2), (5, 4))
    ]
    found = Interface.infer(samples)
    assert found.inputs["x"].axes == ("W", "M", "8")
    assert found.outputs["y"].axes == ("M*W",)


def test_sizes_never_seen_are_solved() -> None:
    dims = GEMM.solve({"a": (8192, 2048), "b": (2048, 4096)}, 4)
    assert dims == {"M": 8192, "K": 8192, "N": 4096, "W": 4}
    assert GEMM.output_shapes(dims) == {"c": ((2048, 4096), torch.float32)}


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"a": (8, 8)}, "the inputs are a, b, not a"),
        ({"a": (8, 8), "b": (8,)}, r"input 'b' is \[K/W, N\], not of shape \[8\]"),
        ({"a": (8, 8), "b": (9, 8)}, "input 'b': axis K/W is 9"),
    ],
)
def test_contradicting_shapes_are_refused(shapes: dict[str, tuple[int, ...]], says: str) -> None:
    with pytest.raises(InterfaceError, match=says):
        GEMM.solve(shapes, 4)


def test_sizes_that_do_not_divide_are_refused() -> None:
    interface = Interface({"x": Tensors(("M*W",), BF16)}, {"y": Tensors(("M",), BF16)})
    assert interface.solve({"x": (8,)}, 4) == {"M": 2, "W": 4}
    with pytest.raises(InterfaceError, match=r"axis M\*W is 9"):
        interface.solve({"x": (9,)}, 4)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([], "no samples"),
        ([gemm(64, 64, 128, 2), Sample({}, 2, {}, {})], "the same tensors"),
        (
            [Sample({"M": m}, 2, {"x": ((m,), BF16)}, {"y": ((m * m,), BF16)}) for m in (3, 5)],
            "tensor 'y': no formula fits axis 0",
        ),
        (
            [Sample({"M": 3, "N": n}, 2, {"x": ((3,), BF16)}, {"y": ((n,), BF16)}) for n in (4, 5)],
            "no input has the letter of 'N'",
        ),
    ],
)
def test_what_cannot_be_inferred_is_told(samples: list[Sample], says: str) -> None:
    with pytest.raises(InterfaceError, match=says):
        Interface.infer(samples)


def test_json_round_trip_keeps_the_order() -> None:
    again = Interface.from_json(json.loads(json.dumps(GEMM.to_json())))
    assert again == GEMM
    assert list(again.inputs) == ["a", "b"]


GOOD: dict[str, Any] = {"name": "a", "shape": ["M"], "dtype": "bfloat16"}


@pytest.mark.parametrize(
    "inputs",
    [
        None,
        [],
        [1],
        [GOOD, GOOD],
        [GOOD | {"more": 1}],
        [GOOD | {"name": "not a name"}],
        [GOOD | {"name": 3}],
        [GOOD | {"shape": "M"}],
        [GOOD | {"shape": [3]}],
        [GOOD | {"shape": ["M+1"]}],
        [GOOD | {"shape": ["M"] * 9}],
        [GOOD | {"dtype": "Tensor"}],
        [GOOD | {"dtype": "load"}],
        [GOOD | {"dtype": None}],
    ],
)
def test_malformed_json_is_refused(inputs: object) -> None:
    with pytest.raises(InterfaceError):
        Interface.from_json({"inputs": inputs, "outputs": [GOOD]})
