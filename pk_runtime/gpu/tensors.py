"""torch tensors in memory that torch did not allocate, and tensors as kernels see them."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from pk_runtime.gpu.binding import DTYPE_NUMBERS, PITCH_BYTES, TensorView

DTYPES = {getattr(torch, name): number for name, number in DTYPE_NUMBERS.items()}


class _Memory:
    """What torch reads to make a tensor of foreign device memory; it keeps `owner` alive."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def tensor_at(
    address: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    device: int,
    pitch: int | None = None,
    owner: object = None,
) -> torch.Tensor:
    """A tensor of `shape` at a device address, without a copy.

    `pitch` is the distance of rows in elements, the last dimension's size if left out. The tensor
    keeps `owner` alive; whoever frees the memory answers for nobody using the tensor.
    """
    columns = shape[-1] if shape else 1
    pitch = columns if pitch is None else pitch
    rows = math.prod(shape[:-1])
    if pitch < columns:
        raise ValueError(f"rows of {columns} elements do not fit a pitch of {pitch}")
    nbytes = max(rows * pitch * dtype.itemsize, 1)
    memory: Any = _Memory(address, nbytes, owner)
    flat = torch.as_tensor(memory, device=f"cuda:{device}")
    if flat.data_ptr() != address:
        raise RuntimeError(f"torch does not take this memory for memory of device {device}")
    flat = flat[: rows * pitch * dtype.itemsize]
    return flat.view(dtype).view(rows, pitch)[:, :columns].view(*shape)


def pitch_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Elements from row to row when rows start at multiples of PITCH_BYTES."""
    unit = PITCH_BYTES // dtype.itemsize
    columns = shape[-1] if shape else 1
    return -(-columns // unit) * unit


def bytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """The memory of a tensor with padded rows."""
    return math.prod(shape[:-1]) * pitch_of(shape, dtype) * dtype.itemsize


def extent_of(tensor: torch.Tensor) -> int:
    """Bytes from the first to behind the last element of a tensor; 0 for an empty one."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.itemsize


def view_at(address: int, shape: Sequence[int], dtype: torch.dtype, pitch: int) -> TensorView:
    """A tensor as a kernel sees it: the last dimension, the one before, the product of the rest.

    TypeError for a dtype that kernels do not know.
    """
    if dtype not in DTYPES:
        known = ", ".join(DTYPE_NUMBERS)
        raise TypeError(f"kernels take {known}, not {str(dtype).removeprefix('torch.')}")
    return TensorView(
        address,
        DTYPES[dtype],
        math.prod(shape[:-2]),
        shape[-2] if len(shape) > 1 else 1,
        shape[-1] if shape else 1,
        pitch,
        tuple(shape),
    )


def view_of(tensor: torch.Tensor) -> TensorView | None:
    """A tensor as a kernel sees it, or None if a kernel cannot use it where it lies.

    Rows must be contiguous, lie one behind the other at one pitch through all dimensions, and start
    at multiples of PITCH_BYTES.
    """
    shape, strides = tensor.shape, tensor.stride()
    columns = shape[-1] if shape else 1
    if columns > 1 and strides[-1] != 1:
        return None
    pitch, below = columns, 1
    for size, stride in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size > 1 and below == 1:
            pitch = stride
        elif size > 1 and stride != pitch * below:
            return None
        below *= size
    address = tensor.data_ptr()
    if address % PITCH_BYTES or pitch * tensor.dtype.itemsize % PITCH_BYTES or pitch < columns:
        return None
    return view_at(address, shape, tensor.dtype, pitch)
