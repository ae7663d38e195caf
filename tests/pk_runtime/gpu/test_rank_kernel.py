"""What RankKernel copies and where it sends kernels, with memory of the host in a heap's place.

The kernels' own setup() runs; only the device is missing: a stand-in records launches.
"""

import contextlib
import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pk_runtime.compiler import Compiler
from pk_runtime.gpu import rank_kernel
from pk_runtime.gpu.binding import LaunchError, RefusedError, TensorView, Views
from pk_runtime.gpu.group_kernel import GroupKernel
from pk_runtime.gpu.rank_kernel import RankKernel
from pk_runtime.gpu.tensors import bytes_of, extent_of, pitch_of, view_at, view_of
from pk_runtime.interface import Interface, InterfaceError
from pk_runtime.kernels import shipped_kernel

BF16 = torch.bfloat16
WORLD, FAR = 2, 1 << 40  # the peer's buffers are as far away


class Buffer:
    """Host memory that starts at a multiple of 256 bytes."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name, self.nbytes = name, nbytes
        self._raw = torch.zeros(nbytes + 256, dtype=torch.uint8)
        start = -self._raw.data_ptr() % 256
        self._bytes = self._raw[start : start + nbytes]
        self.pointers = (self._bytes.data_ptr(), self._bytes.data_ptr() + FAR)

    def tensor(
        self, shape: Sequence[int], dtype: torch.dtype, *, offset: int = 0, pitch: int | None = None
    ) -> torch.Tensor:
        pitch = pitch or shape[-1]
        rows = self._bytes[offset : offset + bytes_of(shape, dtype)].view(dtype).view(-1, pitch)
        return rows[:, : shape[-1]].view(*shape)


class Heap:
    """Rank 0 of two; the other one always agrees."""

    rank, world_size = 0, WORLD
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.peer_says: Any = None

    def allocate(self, name: str, nbytes: int) -> Buffer:
        return self.buffers.setdefault(name, Buffer(name, nbytes))

    def agree(self, what: str, value: Any) -> list[Any]:
        return [value, value if self.peer_says is None else self.peer_says]

    def fresh_name(self, stem: str) -> str:
        return f"{stem} {len(self.buffers)}"

    def locate(self, address: int, nbytes: int) -> tuple[Buffer, int] | None:
        for buffer in self.buffers.values():
            offset = address - buffer.pointers[0]
            if 0 <= offset <= buffer.nbytes - nbytes:
                return buffer, offset
        return None

    def free(self, name: str) -> None:
        del self.buffers[name]


class Launches:
    """What Binding would start; `on_launch` plays the kernel on this rank's views."""

    made: "list[Launches]" = []  # noqa: RUF012 - emptied by the fixture

    def __init__(self, library: Path, rank: int, world: int, views: Views, *_: object) -> None:
        self.views: list[Views] = []
        self.streams: list[int] = []
        self.blocks = 132
        Launches.made.append(self)

    def rebind(self, views: Views) -> Any:
        outer = self

        class Launch:
            def launch(self, stream: int) -> None:
                outer.views.append(views)
                outer.streams.append(stream)
                _doubled(views["x"][0], views["y"][0])

        return Launch()


def _doubled(x: TensorView, y: TensorView) -> None:
    """y = 2 x, by address, in bf16."""
    for row in range(x.planes * x.rows):
        source = (ctypes.c_char * (2 * x.cols)).from_address(x.address + 2 * row * x.pitch)
        target = (ctypes.c_char * (2 * y.cols)).from_address(y.address + 2 * row * y.pitch)
        values = torch.frombuffer(bytearray(source.raw), dtype=BF16) * 2
        target.raw = values.view(torch.uint8).numpy().tobytes()


class Stream:
    cuda_stream = 77

    def query(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    Launches.made.clear()
    monkeypatch.setattr(rank_kernel, "Binding", Launches)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.fixture(scope="module")
def two_shot(needs_nvcc: None, compiler: Compiler) -> Path:
    return compiler.library(shipped_kernel("allreduce_two_shot"))  # x and y shared


@pytest.fixture(scope="module")
def one_shot(needs_nvcc: None, compiler: Compiler) -> Path:
    return compiler.library(shipped_kernel("allreduce_one_shot"))  # only x shared


def made(library: Path, heap: Heap, *shape: int) -> RankKernel:
    spec = (shape, BF16)
    return RankKernel(library, heap, {"x": spec}, {"y": spec})  # type: ignore[arg-type]


def values(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).remainder(50).to(BF16).view(*shape)


@pytest.mark.parametrize("shape", [(64, 128), (33, 129), (2, 16, 64)])
def test_foreign_tensors_are_copied_once_each_way(two_shot: Path, shape: tuple[int, ...]) -> None:
    heap = Heap()
    kernel = made(two_shot, heap, *shape)
    x = values(*shape)
    y = kernel({"x": x})["y"]
    assert torch.equal(y, 2 * x)
    assert y.is_contiguous()
    (launches,) = Launches.made
    assert launches.streams == [77]
    view = launches.views[0]["x"][0]
    assert view.address == kernel.tensors["x"].data_ptr() != x.data_ptr()
    assert view.pitch == pitch_of(shape, BF16)
    assert launches.views[0]["x"][1].address == view.address + FAR
    again = kernel({"x": 3 * x})["y"]
    assert torch.equal(again, 6 * x)
    assert torch.equal(y, 2 * x), "the first result is the caller's own"


def test_symmetric_tensors_are_used_where_they_lie(two_shot: Path) -> None:
    heap = Heap()
    kernel = made(two_shot, heap, 64, 128)
    mine = heap.allocate("mine", 1 << 20)
    x = mine.tensor((64, 128), BF16, offset=4096)
    x.copy_(values(64, 128))
    y = mine.tensor((64, 128), BF16, offset=1 << 18)
    found = kernel({"x": x}, {"y": y})["y"]
    assert found is y
    assert torch.equal(y, 2 * x)
    (view,) = Launches.made[0].views
    assert view["x"][0].address == x.data_ptr()
    assert view["x"][1].address == mine.pointers[1] + 4096
    assert not kernel.tensors["x"].any()
    kernel.tensors["x"].copy_(x)
    kernel({"x": kernel.tensors["x"]}, {"y": kernel.tensors["y"]})
    assert torch.equal(kernel.tensors["y"], 2 * x)


def test_tensors_that_no_peer_touches_need_no_copy(one_shot: Path) -> None:
    heap = Heap()
    kernel = made(one_shot, heap, 64, 128)
    assert set(kernel.tensors) == {"x"}
    y = torch.zeros(64, 128, dtype=BF16)
    kernel({"x": values(64, 128)}, {"y": y})
    assert torch.equal(y, 2 * values(64, 128))
    assert Launches.made[0].views[0]["y"][0].address == y.data_ptr()
    odd = made(one_shot, heap, 33, 129)
    found = odd({"x": values(33, 129)})["y"]
    assert torch.equal(found, 2 * values(33, 129)), "rows that are not aligned are copied"
    assert Launches.made[1].views[0]["y"][0].pitch == 136


def test_a_prepared_call_follows_its_tensors(two_shot: Path) -> None:
    kernel = made(two_shot, Heap(), 64, 128)
    x, y = values(64, 128), torch.empty(64, 128, dtype=BF16)
    call = kernel.bind({"x": x}, {"y": y})
    for factor in (1, 2):
        x.copy_(factor * values(64, 128))
        assert call()["y"] is y
        assert torch.equal(y, 2 * x)


def test_wrong_tensors_are_refused(two_shot: Path) -> None:
    kernel = made(two_shot, Heap(), 64, 128)
    x = values(64, 128)
    for wrong, message in (
        ({}, "the inputs are x, not "),
        ({"x": x, "z": x}, "the inputs are x, not x, z"),
        ({"x": x[:32]}, r"'x' is \[32, 128\]"),
        ({"x": x.float()}, r"torch\.float32; this kernel was made"),
        ({"x": x.to("meta")}, "is on meta"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(wrong)
    with pytest.raises(ValueError, match="the outputs are y, not y, q"):
        kernel({"x": x}, {"q": x})


def test_ranks_that_differ_are_refused(two_shot: Path) -> None:
    heap = Heap()
    heap.peer_says = ["", "allreduce_two_shot", 0, {}, []]
    with pytest.raises(LaunchError, match="rank 1 makes another kernel than rank 0"):
        made(two_shot, heap, 64, 128)
    with pytest.raises(RefusedError, match="the problem has no tensor 'y'"):
        RankKernel(two_shot, Heap(), {"x": ((64, 64), BF16)}, {})  # type: ignore[arg-type]


def test_a_group_kernel_makes_one_kernel_per_shape(
    two_shot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = {"shape": ["M", "N"], "dtype": "bfloat16"}
    interface = Interface.from_json(
        {"inputs": [{"name": "x", **matrix}], "outputs": [{"name": "y", **matrix}]}
    )
    heap = Heap()
    group = GroupKernel(two_shot, heap, interface, name="allreduce")  # type: ignore[arg-type]
    for rows in (64, 128, 64):
        x = values(rows, 64)
        assert torch.equal(group(x=x)["y"], 2 * x)
    assert len(heap.buffers) == len(Launches.made) == 2
    with pytest.raises(InterfaceError, match=r"'x' is torch\.float32"):
        group(x=values(64, 64).float())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert torch.equal(group(x=values(64, 64))["y"], 2 * values(64, 64))
    with pytest.raises(LaunchError, match="call it once with tensors of these shapes before"):
        group(x=values(64, 192))


def test_views_of_tensors() -> None:
    assert view_of(torch.empty(4, 3, 64, dtype=BF16)[:, 1:]) is None, "planes that leave a gap"
    strided = torch.empty(3, 64, 128, dtype=BF16)[:, :, :64]
    view = view_of(strided)
    assert view == view_at(strided.data_ptr(), (3, 64, 64), BF16, 128)
    assert (view.planes, view.rows, view.cols) == (3, 64, 64)
    assert view_of(torch.empty(64, 64, dtype=BF16).t()) is None
    assert view_of(torch.empty(65, dtype=BF16)[1:]) is None, "not at a multiple of 16 bytes"
    assert view_of(torch.empty(33, 129, dtype=BF16)) is None, "neither are its rows"
    assert extent_of(strided) == 2 * (3 * 64 * 128 - 64)
    assert extent_of(torch.empty(0, 5)) == 0
    with pytest.raises(TypeError, match="kernels take bfloat16, float16, float32, int32, not"):
        view_at(0, (1, 1), torch.float64, 1)
