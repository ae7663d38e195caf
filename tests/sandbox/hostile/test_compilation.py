"""Sources that attack the compiler, which is as hostile as running them."""

from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.kernels import shipped_kernel
from sandbox.isolation import BubblewrapExecutor, IsolatedExecutor
from sandbox.judge import Judge
from sandbox.stages import StageFailed
from sandbox.stages.build import build
from tests.sandbox.conformance import gone

KERNEL = shipped_kernel("alltoall").source

# What the sandbox must hold against: on every back end.
READS = {
    "a file of the machine": ("#include </etc/passwd>\n", "passwd"),
    "its own environment": ("#include </proc/self/environ>\n", "include"),
    "the environment of others": ("#include </proc/1/environ>\n", "environ"),
    "a device": ('asm(".incbin \\"/dev/zero\\"");\n', ""),
    "a file by the assembler": ('asm(".incbin \\"/etc/shadow\\"");\n', ""),
}
# What the limits and the compiler itself must hold against.
BOMBS = {
    "itself": ('#include "kernel.cu"\n', "nested"),
    "endless templates": (
        "template <int N> struct t { using type = typename t<N + 1>::type; };\n"
        "using x = t<0>::type;\n",
        "depth",
    ),
    "endless constants": (
        "constexpr int f() { int n = 0; for (;;) ++n; return n; }\nconstexpr int x = f();\n",
        "",
    ),
    "a huge object": ("char big[1u << 30] = {1};\n", ""),
    "a flood of messages": (
        "".join(f"#warning {'x' * 200} {i}\n" for i in range(3000)) + "#error end\n",
        "",
    ),
}


@pytest.fixture(scope="module")
def engine(judge: Judge, judge_cache: Path) -> Path:
    """A cache in which the engine is built already."""
    return judge_cache / "build"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", READS)
def test_the_compiler_reads_nothing_of_the_machine(
    name: str, engine: Path, judge_cache: Path, isolating: IsolatedExecutor
) -> None:
    fails(*READS[name], Compiler(engine, isolating), judge_cache)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", BOMBS)
def test_the_compiler_comes_to_an_end(
    name: str, engine: Path, judge_cache: Path, bubblewrap: BubblewrapExecutor
) -> None:
    fails(*BOMBS[name], Compiler(engine, bubblewrap), judge_cache)


@pytest.mark.slow
def test_a_good_kernel_compiles(engine: Path, isolating: IsolatedExecutor) -> None:
    """The positive control."""
    source = f"// for {isolating.name}\n{KERNEL}"
    assert build(Compiler(engine, isolating), Candidate("pk", {"kernel.cu": source})).exists()


def fails(source: str, words: str, compiler: Compiler, judge_cache: Path) -> None:
    """The build fails with a message that tells nothing of the machine, and leaves nothing."""
    with pytest.raises(StageFailed) as failed:
        build(compiler, Candidate("pk", {"kernel.cu": source + KERNEL}))
    assert failed.value.status == "build_failed"
    evidence = str(failed.value.evidence)
    assert words in evidence
    assert "root:" not in evidence
    assert "PATH=" not in evidence
    assert str(judge_cache) not in evidence
    assert gone(str(judge_cache))
