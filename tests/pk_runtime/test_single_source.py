"""One source, two machines: every kernel compiles, unchanged, for the simulator and for sm_90a, and
its machine code is what a GPU needs it to be. Nothing here runs on a GPU."""

import re
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import INCLUDE, Compiler
from pk_runtime.disassembly import opcodes, resource_usage
from pk_runtime.execution import Command, Limits, LocalExecutor
from pk_runtime.kernels import shipped_kernel, shipped_names
from pk_runtime.toolchain import ToolchainError, cuobjdump, gxx, nvcc, search_path

SOURCES = Path(__file__).parent / "sources"  # operations that no shipped kernel uses
REGISTERS_OF_AN_SM = 65536


def _candidate(name: str) -> Candidate:
    if name in shipped_names():
        return shipped_kernel(name)
    return Candidate("pk", {"kernel.cu": (SOURCES / f"{name}.cu").read_text(encoding="utf-8")})


def _has_tools() -> bool:
    try:
        nvcc(), cuobjdump()
    except ToolchainError:
        return False
    return True


KERNELS = (*shipped_names(), *sorted(path.stem for path in SOURCES.glob("*.cu")))
MULTIPLYING = {name for name in KERNELS if "mma" in _candidate(name).source or "gemm" in name}
# Kernels without shared memory move slabs; they have nothing for the bulk copy engine.
THROUGH_REGISTERS = {name for name in KERNELS if "struct shared" not in _candidate(name).source}

needs_nvcc = pytest.mark.skipif(not _has_tools(), reason="there is no nvcc here, or no cuobjdump")


def _ptx(name: str, folder: Path) -> str:
    """The intermediate code of a kernel, where nothing has lost its name yet."""
    (folder / "kernel.cu").write_text(_candidate(name).source, encoding="utf-8")
    argv = (
        *(str(nvcc().path), "-std=c++20", "-gencode", "arch=compute_90a,code=compute_90a", "-ptx"),
        *(f"-I{INCLUDE}", "-ccbin", str(gxx().path), "-o", "kernel.ptx", "kernel.cu"),
    )
    env = {"PATH": search_path(nvcc(), gxx()), "LC_ALL": "C", "TMPDIR": "."}
    done = LocalExecutor().run(Command(argv, folder, (), env, Limits(90, 4 << 30)))
    assert done.ok, done.stderr.decode(errors="replace")
    assert done.stderr == b"", done.stderr.decode(errors="replace")
    return (folder / "kernel.ptx").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_the_simulator(name: str, compiler: Compiler) -> None:
    assert compiler.simulator(_candidate(name)).is_file()


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_machine_code(name: str, compiler: Compiler) -> None:
    cubin = compiler.cubin(_candidate(name))
    found = opcodes(cubin)
    assert found["UTMALDG"] or name in THROUGH_REGISTERS, "no bulk tensor load"
    assert found["UTMASTG"] or name in THROUGH_REGISTERS, "no bulk tensor store"
    assert bool(found["HGMMA"]) == (name in MULTIPLYING)
    assert not found["HMMA"]
    log = cubin.with_suffix(".log").read_text(encoding="utf-8")
    assert "(C75" not in log, f"the compiler waits for the tensor cores on its own: {log}"
    assert not found["LDL"], "registers were spilled or an array is in local memory"
    assert not found["STL"], "registers were spilled or an array is in local memory"
    (usage,) = resource_usage(cubin)
    assert usage.function == "pk_kernel"
    assert (usage.stack_bytes, usage.spill_store_bytes, usage.spill_load_bytes) == (0, 0, 0)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_intermediate_code(name: str, compiler: Compiler, tmp_path: Path) -> None:
    ptx = _ptx(name, tmp_path)
    assert "multimem" not in ptx
    assert "multicast" not in ptx
    # Peers see counters through release and acquire; words of data with a flag need neither.
    assert set(re.findall(r"st\.relaxed\S*", ptx)) <= {"st.relaxed.sys.global.v2.u64"}
    for add in re.finditer(r"^\s*red\.(\w+)\.sys\.|^\s*red\.", ptx, re.MULTILINE):
        fenced = add[1] == "relaxed" and "fence.acq_rel.sys" in ptx[: add.start()]
        assert add[1] == "release" or fenced, "a signal releases at system scope, or a fence does"
    (threads,) = (int(n) for n in re.findall(r"\.maxntid (\d+)", ptx))
    (usage,) = resource_usage(compiler.cubin(_candidate(name)))
    assert usage.registers * threads <= REGISTERS_OF_AN_SM
    # Warpgroups trade registers inside what the block got at its launch.
    down = {int(n) for n in re.findall(r"setmaxnreg\.dec\S* (\d+)", ptx)}
    up = {int(n) for n in re.findall(r"setmaxnreg\.inc\S* (\d+)", ptx)}
    if name in MULTIPLYING:
        (issuers,), (groups,) = down, up
        warpgroups = threads // 128
        assert groups * (warpgroups - 1) + issuers <= usage.registers * warpgroups


@needs_nvcc
def test_a_type_that_tensor_cores_do_not_take_is_refused(compiler: Compiler) -> None:
    source = _candidate("attention").source.replace("tile<bf16, 128, 128>", "tile<float, 128, 128>")
    with pytest.raises(Exception, match="mma") as caught:
        compiler.cubin(Candidate("pk", {"kernel.cu": source}))
    assert type(caught.value).__name__ == "BuildError"
