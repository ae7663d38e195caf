"""The compiler driver with the real g++ and nvcc."""

import ctypes
import dataclasses
import threading
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import (
    COMPILE_LIMITS,
    BuildError,
    Compiler,
    UnsupportedLanguage,
)
from pk_runtime.execution import Command, Completed, Limits, LocalExecutor
from pk_runtime.gpu.abi import ABI_VERSION, Description, Failure
from pk_runtime.kernels import shipped, shipped_kernel
from pk_runtime.toolchain import ToolchainError

KERNEL = shipped_kernel("alltoall")
END = "\nPK_KERNEL(alltoall)\n"


def pk(source: str, **knobs: int) -> Candidate:
    return Candidate("pk", {"kernel.cu": source}, knobs)


def with_text(text: str) -> Candidate:
    """A good kernel with some text before its last line."""
    assert KERNEL.source.endswith(END)
    return pk(KERNEL.source.removesuffix(END) + "\n" + text + END)


def line_of(candidate: Candidate, text: str) -> int:
    lines = candidate.source.splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def failure(compiler: Compiler, candidate: Candidate) -> BuildError:
    with pytest.raises(BuildError) as caught:
        compiler.simulator(candidate)
    assert caught.value.diagnostics
    assert caught.value.log.startswith(str(caught.value.diagnostics[0]))
    return caught.value


class Recorder:
    """Runs commands locally and remembers them."""

    name = "recorder"

    def __init__(self) -> None:
        self.commands: list[Command] = []

    def run(self, command: Command) -> Completed:
        self.commands.append(command)
        return LocalExecutor().run(command)


def test_a_kernel_becomes_a_program(compiler: Compiler) -> None:
    program = compiler.simulator(KERNEL)
    assert program.is_file()
    assert program.stat().st_mode & 0o111


def test_only_the_candidate_goes_through_the_executor(compiler: Compiler, tmp_path: Path) -> None:
    recorder = Recorder()
    once = Compiler(compiler.cache.root, recorder)
    once.engine()
    assert recorder.commands == []
    candidate = with_text(f"// {tmp_path}")
    program = once.simulator(candidate)
    assert once.simulator(candidate) == program
    (command,) = recorder.commands
    assert command.limits == COMPILE_LIMITS
    compiled, _, linked = command.argv[-1].partition(" && ")
    assert " kernel.cu " in compiled
    assert 0 < linked.index("engine.a") < linked.index("kernel.o")  # which is the engine's, wins
    assert all(path.is_absolute() and path.exists() for path in command.read_only)
    assert not command.workdir.exists()
    assert set(command.env) == {"PATH", "LC_ALL", "TMPDIR"}


def test_knobs_reach_the_source_and_the_cache(compiler: Compiler) -> None:
    source = with_text('static_assert(knob("mine", 2, {2, 3}) == 2, "mine is not 2");').source
    default = compiler.simulator(pk(source))
    assert compiler.simulator(pk(source, mine=2)) == default
    error = failure(compiler, pk(source, mine=3))
    assert "mine is not 2" in error.diagnostics[0].message


def test_a_syntax_error_names_its_line(compiler: Compiler) -> None:
    candidate = with_text("int broken( { return 1 }")
    first = failure(compiler, candidate).diagnostics[0]
    assert (first.file, first.severity) == ("kernel.cu", "error")
    assert first.line == line_of(candidate, "int broken(")


def test_a_wrong_tile_names_the_line_that_made_it(compiler: Compiler) -> None:
    candidate = with_text(
        'template <int N> struct even { static_assert(N % 2 == 0, "odd N"); };\neven<3> three;'
    )
    records = failure(compiler, candidate).diagnostics
    assert "odd N" in records[0].message
    assert line_of(candidate, "even<3> three") in {record.line for record in records}


def test_a_missing_return_is_an_error(compiler: Compiler) -> None:
    error = failure(compiler, with_text("int forgets(int x) { if (x) return 1; }"))
    assert "end of non-void function" in error.diagnostics[0].message


def test_linker_errors(compiler: Compiler) -> None:
    undefined = with_text("int absent(int);\nint user = absent(3);")
    first = failure(compiler, undefined).diagnostics[0]
    assert (first.line, first.message) == (
        line_of(undefined, "int absent"),
        "'absent(int)' is used but not defined",
    )
    no_kernel = pk(KERNEL.source.removesuffix(END))
    assert "PK_KERNEL(name)" in failure(compiler, no_kernel).diagnostics[0].message
    own_main = failure(compiler, with_text("int main() { return 0; }")).diagnostics[0]
    assert "'main' is defined twice" in own_main.message


@pytest.mark.parametrize(
    "text",
    [
        '#include "{path}"',
        "#include <{path}>",
        "#import <{path}>",
        '#include "{path}"\n#include "absent.h"',
        "static const char* name =\n#include <{path}>\n;",
    ],
)
def test_no_file_of_the_machine_is_quoted(compiler: Compiler, tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password_of_somebody\n")
    candidate = with_text(text.format(path=secret))
    error = failure(compiler, candidate)
    assert "password_of_somebody" not in error.log
    assert str(tmp_path) not in error.log
    assert "may include only <pk/...>" in error.diagnostics[0].message
    assert error.diagnostics[0].line == line_of(candidate, "secret.txt")


def test_a_file_that_compiles_when_included_is_refused_too(
    compiler: Compiler, tmp_path: Path
) -> None:
    (tmp_path / "good.h").write_text("constexpr int fine = 1;\n")
    error = failure(compiler, with_text(f'#include "{tmp_path}/good.h"'))
    assert "'good.h' is none of them" in error.diagnostics[0].message


def test_line_directives_quote_nothing(compiler: Compiler, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password_of_somebody\n")
    error = failure(compiler, with_text(f'#line 1 "{secret}"\nint x = y;'))
    assert "password_of_somebody" not in error.log
    assert str(tmp_path) not in error.log


def test_standard_headers_are_allowed(compiler: Compiler) -> None:
    compiler.simulator(with_text("#include <array>\n#include <cmath>\n#include <stdint.h>"))


def test_a_compiler_that_takes_too_long_is_stopped(compiler: Compiler) -> None:
    hurried = Compiler(compiler.cache.root, limits=dataclasses.replace(COMPILE_LIMITS, wall_s=0.05))
    hurried.engine()
    error = failure(hurried, with_text("// too long"))
    assert "more than 0.05 s" in error.diagnostics[0].message


@pytest.mark.slow
def test_a_compiler_that_takes_too_much_memory_is_stopped(compiler: Compiler) -> None:
    limits = Limits(60, 300 << 20)
    error = failure(
        Compiler(compiler.cache.root, limits=limits),
        with_text(
            "template <int D, int... I> struct tree"
            " { tree<D - 1, I..., 0> a; tree<D - 1, I..., 1> b; };\n"
            "template <int... I> struct tree<0, I...> { char c[sizeof...(I) + 1]; };"
            "\ntree<24> forest;"
        ),
    )
    assert "GiB of memory" in error.diagnostics[0].message


def test_a_candidate_that_is_not_valid_is_a_build_error(compiler: Compiler) -> None:
    error = failure(compiler, pk('#include <pk/pk.h>\nconstexpr int a = knob("a", 1, {2});'))
    assert str(error.diagnostics[0]).startswith("kernel.cu:2: error: knob 'a': the default 1")
    assert "no knob 'zzz'" in failure(compiler, pk(KERNEL.source, zzz=1)).log


@pytest.mark.parametrize("language", ["triton", "cuda"])
def test_the_simulator_runs_pk_only(compiler: Compiler, language: str) -> None:
    files = {"kernel.py": "x", "kernel.cu": "y"}
    candidate = Candidate.from_json({"language": language, "files": files, "knobs": {}})
    with pytest.raises(UnsupportedLanguage, match="sim: targets run pk kernels only"):
        compiler.simulator(candidate)
    assert issubclass(UnsupportedLanguage, BuildError)


def test_builders_at_once_agree(compiler: Compiler, tmp_path: Path) -> None:
    candidate = with_text(f"// at once {tmp_path}")
    programs: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: programs.append(Compiler(compiler.cache.root).simulator(candidate))
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(programs) == 3
    assert set(programs) == {programs[0]}


def test_a_damaged_program_is_built_again(compiler: Compiler, tmp_path: Path) -> None:
    candidate = with_text(f"// damaged {tmp_path}")
    program = compiler.simulator(candidate)
    good = program.read_bytes()
    program.write_bytes(good[:100])
    assert compiler.simulator(candidate).read_bytes() == good


def test_a_compiler_that_says_nothing_is_the_machines_fault(compiler: Compiler) -> None:
    class Silent:
        name = "silent"

        def run(self, command: Command) -> Completed:
            return Completed(1, None, None, b"", b"", 0.0)

    class Lying:
        name = "lying"

        def run(self, command: Command) -> Completed:
            return Completed(0, None, None, b"", b"", 0.0)

    candidate = with_text("// nobody compiles this")
    with pytest.raises(ToolchainError, match="exit code 1"):
        Compiler(compiler.cache.root, Silent()).simulator(candidate)
    with pytest.raises(ToolchainError, match=r"wrote no kernel\.o"):
        Compiler(compiler.cache.root, Lying()).simulator(candidate)


CUDA = """#include "tools/add.cuh"
#include <cuda_bf16.h>
__global__ void sum(float* out, const __nv_bfloat16* in) { out[0] = add(in[0], in[1]); }
"""


def cuda(text: str) -> Candidate:
    tools = (
        "#include <cuda_bf16.h>\n__device__ inline float add(float a, float b) { return a + b; }"
    )
    return Candidate("cuda", {"kernel.cu": text, "tools/add.cuh": tools})


@pytest.mark.usefixtures("needs_nvcc")
class TestCubin:
    def test_a_cuda_candidate_of_several_files(self, compiler: Compiler) -> None:
        cubin = compiler.cubin(cuda(CUDA))
        assert cubin.read_bytes().startswith(b"\x7fELF")
        assert "registers" in cubin.with_name("kernel.log").read_text()

    def test_errors_name_file_and_line(self, compiler: Compiler) -> None:
        with pytest.raises(BuildError) as caught:
            compiler.cubin(cuda(CUDA + "__global__ void bad() { undefined_name(); }"))
        first = caught.value.diagnostics[0]
        assert (first.file, first.line) == ("kernel.cu", 4)
        assert "undefined_name" in first.message

    def test_too_much_shared_memory_is_told(self, compiler: Compiler) -> None:
        big = (
            "__global__ void big(int* p) { __shared__ int s[90000]; s[p[0]] = 1; p[1] = s[p[2]]; }"
        )
        with pytest.raises(BuildError, match="too much shared data"):
            compiler.cubin(cuda(CUDA + big))

    def test_no_file_of_the_machine_is_quoted(self, compiler: Compiler, tmp_path: Path) -> None:
        secret = tmp_path / "secret.txt"
        secret.write_text("password_of_somebody\n")
        with pytest.raises(BuildError) as caught:
            compiler.cubin(cuda(CUDA + f'#include "{secret}"\n'))
        assert "password_of_somebody" not in caught.value.log
        assert "may include only" in caught.value.log

    def test_triton_is_refused(self, compiler: Compiler) -> None:
        with pytest.raises(UnsupportedLanguage, match="Triton compiles its kernels itself"):
            compiler.cubin(Candidate("triton", {"kernel.py": "x"}))


@pytest.mark.usefixtures("needs_nvcc")
def test_a_library_exports_what_a_launcher_needs(compiler: Compiler) -> None:
    library = ctypes.CDLL(str(compiler.library(shipped("alltoall")[0])))
    about = Description.in_dll(library, "pk_description")
    assert (about.abi, about.name) == (ABI_VERSION, b"alltoall")
    assert about.failure_bytes == ctypes.sizeof(Failure)
    assert about.roles == 0b0101  # loader and storer
    for name in ("pk_setup", "pk_prepare", "pk_launch"):
        assert hasattr(library, name)
