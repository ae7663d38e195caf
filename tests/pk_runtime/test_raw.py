"""Raw CUDA candidates: they build, bind what they ask for, and refuse in words; without a GPU."""

import ctypes
import re
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import BuildError, Compiler
from pk_runtime.disassembly import opcodes, resource_usage
from pk_runtime.gpu.abi import ABI_VERSION, Failure
from pk_runtime.gpu.binding import LaunchError, Library, Needed, TensorView

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = sorted(path.stem for path in (DOCS / "examples").glob("raw_*.cu"))
WORLD = 4


def example(name: str, old: str = "", new: str = "") -> Candidate:
    text = (DOCS / "examples" / f"{name}.cu").read_text(encoding="utf-8")
    assert old in text
    return Candidate("cuda", {"kernel.cu": text.replace(old, new, 1)})


def views(planes: int = 1, *, dtype: int = 0, pitch: int = 136) -> list[TensorView]:
    """A tensor of 33 x 129 elements on every rank, nowhere in memory."""
    return [TensorView(0, dtype, planes, 33, 129, pitch)] * WORLD


def test_the_page_shows_the_example() -> None:
    page = (DOCS / "raw_cuda.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    assert shown == example("raw_allreduce").source


@pytest.mark.slow
@pytest.mark.usefixtures("needs_nvcc")
class TestLibrary:
    @pytest.mark.parametrize("name", EXAMPLES)
    def test_an_example_builds_without_spills(self, compiler: Compiler, name: str) -> None:
        cubin = compiler.cubin(example(name))
        assert all(kernel.spill_store_bytes == 0 for kernel in resource_usage(cubin))
        assert opcodes(cubin)["LDG"] + opcodes(cubin)["LD"] > 0

    def test_it_says_what_a_launcher_must_know(self, compiler: Compiler) -> None:
        about = Library(compiler.library(example("raw_allgather"))).about
        assert (about.abi, about.name, about.max_world) == (ABI_VERSION, b"raw_allgather", 8)
        assert about.failure_bytes == ctypes.sizeof(Failure)
        assert about.comm_sms == 0

    def test_setup_asks_for_peers_tensors_and_symmetric_memory(self, compiler: Compiler) -> None:
        library = Library(compiler.library(example("raw_allgather")))
        plan = library.plan(1, WORLD, {"x": views(), "y": views(WORLD)}, {"y"})
        assert plan.shared == {"y"}
        control, arrived = plan.needed
        assert (control.kind, control.nbytes) == ("control", library.about.control_bytes)
        assert arrived == Needed("signals", "arrived", 4 * WORLD)

    @pytest.mark.parametrize(
        ("x", "y", "said"),
        [
            (views(), None, "the problem has no tensor 'y'"),
            (views(dtype=2), views(), "'x' holds fp32, and the kernel binds it as bf16"),
            (views(), views(pitch=160), "x and y must have rows of the same pitch"),
            (views()[:1] + views(pitch=144)[1:], views(), "different pitch on the ranks"),
        ],
    )
    def test_setup_refuses_in_words(
        self, compiler: Compiler, x: list[TensorView], y: list[TensorView] | None, said: str
    ) -> None:
        library = Library(compiler.library(example("raw_allreduce")))
        with pytest.raises(LaunchError, match=re.escape(said)):
            library.plan(0, WORLD, {"x": x, **({"y": y} if y else {})}, {"y"})

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ("peer_tensor<const __nv_bfloat16> x", "peer_tensor<__nv_bfloat16> x", "input"),
            ("threads, 0, g, at.self", "threads, 0, g", "one argument for each parameter"),
            ("peer_tensor<const __nv_bfloat16> x", "peer_tensor<const double> x", "tensors hold"),
        ],
    )
    def test_a_mistake_is_a_build_error(
        self, compiler: Compiler, old: str, new: str, said: str
    ) -> None:
        with pytest.raises(BuildError, match=said):
            compiler.library(example("raw_allreduce", old, new))
