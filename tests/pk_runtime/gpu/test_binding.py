"""What a kernel's setup() asks for, found out without a GPU; and errors where there is none."""

from pathlib import Path

import pytest

from pk_runtime.compiler import Compiler
from pk_runtime.gpu.binding import Binding, LaunchError, Library, TensorView, Views
from pk_runtime.gpu.driver import DriverError, NoDriverError, device_count
from pk_runtime.gpu.memory import Allocation
from pk_runtime.kernels import shipped_kernel

WORLD = 4


def views(**shapes: tuple[int, int, int]) -> Views:
    return {
        name: [TensorView(0, 0, *shape, pitch=shape[-1])] * WORLD for name, shape in shapes.items()
    }


@pytest.fixture(scope="module")
def two_shot(needs_nvcc: None, compiler: Compiler) -> Path:
    return compiler.library(shipped_kernel("allreduce_two_shot"))


@pytest.fixture(scope="module")
def gemm(needs_nvcc: None, compiler: Compiler) -> Path:
    return compiler.library(shipped_kernel("gemm_reducescatter"))


def has_gpu() -> bool:
    try:
        return device_count() > 0
    except DriverError:
        return False


without_gpu = pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")


def test_a_plan_says_what_every_rank_must_have(two_shot: Path, gemm: Path) -> None:
    plan = Library(two_shot).plan(0, WORLD, views(x=(1, 64, 128), y=(1, 64, 128)), {"y"})
    assert plan.shared == {"x", "y"}
    (control,) = plan.needed
    assert control.kind == "control"
    assert control.nbytes == Library(two_shot).about.control_bytes
    tensors = views(a=(1, 256, 64), b=(1, 64, 128), c=(1, 64, 128))
    needed = Binding.plan(gemm, 1, WORLD, tensors)
    assert needed[0].kind == "control"
    assert {n.kind for n in needed} >= {"scratch"}
    assert len(set(needed)) == len(needed)
    assert needed == Binding.plan(gemm, 3, WORLD, tensors), "every rank needs the same"
    assert all(n.nbytes > 0 for n in needed)
    larger = Binding.plan(gemm, 0, WORLD, views(a=(1, 512, 64), b=(1, 64, 128), c=(1, 128, 128)))
    size = {n.name: n.nbytes for n in needed if n.kind == "scratch"}
    assert {n.name: n.nbytes for n in larger if n.kind == "scratch"} == {
        name: 2 * nbytes for name, nbytes in size.items()
    }


def test_what_the_kernel_refuses_is_told_in_its_words(two_shot: Path, gemm: Path) -> None:
    x = (1, 64, 128)
    with pytest.raises(LaunchError, match="the problem has no tensor 'y'"):
        Binding.plan(two_shot, 0, WORLD, views(x=x))
    with pytest.raises(LaunchError, match="'x' is an output of the problem, not an input"):
        Binding.plan(two_shot, 0, WORLD, views(x=x, y=x), {"x"})
    with pytest.raises(LaunchError, match="no view of rank 1"):
        Binding.plan(two_shot, 0, WORLD, {"x": [TensorView(0, 0, *x, 128)], **views(y=x)})
    with pytest.raises(LaunchError, match="at most 8 ranks"):
        Binding.plan(two_shot, 0, 9, views(x=x, y=x))
    wrong = {**views(y=x), "x": [TensorView(0, 2, *x, pitch=128)] * WORLD}
    with pytest.raises(LaunchError, match="'x' holds fp32, and the kernel binds it as bf16"):
        Binding.plan(two_shot, 0, WORLD, wrong)
    with pytest.raises(LaunchError, match="the same local K"):
        Binding.plan(gemm, 0, WORLD, views(a=(1, 256, 64), b=(1, 128, 128), c=(1, 64, 128)))


def test_something_else_is_no_library(tmp_path: Path, two_shot: Path) -> None:
    (tmp_path / "text.so").write_text("no")
    with pytest.raises(LaunchError, match="is not a built kernel"):
        Library(tmp_path / "text.so")
    old = tmp_path / "old.so"
    about = Library(two_shot).about
    head = bytes(about)[:40]
    data = two_shot.read_bytes()
    assert data.count(head) == 1
    old.write_bytes(data.replace(head, b"\1" + head[1:]))
    with pytest.raises(LaunchError, match="another version of pkforge: build it again"):
        Library(old)


@without_gpu
def test_without_a_driver_it_says_so(two_shot: Path) -> None:
    x = views(x=(1, 64, 128), y=(1, 64, 128))
    with pytest.raises(NoDriverError, match=r"^no NVIDIA driver: .*use a sim: target"):
        Binding(two_shot, 0, WORLD, x, {"y"}, lambda kind, name, rank: 0)
    with pytest.raises(NoDriverError, match="no NVIDIA driver"):
        Allocation.create(0, 1)
    with pytest.raises(NoDriverError, match="no NVIDIA driver"):
        device_count()
