"""Machine code of real kernels, read back."""

from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.disassembly import opcodes, resource_usage
from pk_runtime.toolchain import ToolchainError

# Tensor core and TMA instructions by hand: what the reader must be able to see.
SOURCE = """#include <cuda_bf16.h>
extern "C" __global__ void copies(const char* map, float* out) {
  __shared__ alignas(128) float tile[1024];
  __shared__ alignas(8) unsigned long long bar;
  unsigned at = __cvta_generic_to_shared(tile), b = __cvta_generic_to_shared(&bar);
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%2, %3}], [%4];"
               ::"r"(at), "l"(map), "r"(0), "r"(0), "r"(b) : "memory");
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
               ::"l"(map), "r"(0), "r"(0), "r"(at) : "memory");
  out[threadIdx.x] = tile[threadIdx.x];
}
extern "C" __global__ void small(int* p) { p[0] = 1; }
"""

pytestmark = pytest.mark.usefixtures("needs_nvcc")


@pytest.fixture(scope="module")
def cubin(compiler: Compiler) -> Path:
    return compiler.cubin(Candidate("cuda", {"kernel.cu": SOURCE}))


def test_opcodes_are_counted_without_modifiers(cubin: Path) -> None:
    counts = opcodes(cubin)
    assert counts["UTMALDG"] == 1
    assert counts["UTMASTG"] == 1
    assert counts["EXIT"] >= 2
    assert not any("." in name for name in counts)


def test_resources_of_every_kernel(cubin: Path) -> None:
    usage = {kernel.function: kernel for kernel in resource_usage(cubin)}
    assert set(usage) == {"copies", "small"}
    assert 4096 <= usage["copies"].smem_bytes <= 8192
    assert usage["small"].smem_bytes < usage["copies"].smem_bytes
    assert all(0 < kernel.registers <= 255 for kernel in usage.values())
    assert all(kernel.spill_store_bytes == 0 for kernel in usage.values())


def test_spills_are_read_from_the_builds_log(cubin: Path, tmp_path: Path) -> None:
    copy = tmp_path / "kernel.cubin"
    copy.write_bytes(cubin.read_bytes())
    copy.with_suffix(".log").write_text(
        "ptxas info    : Function properties for small\n"
        "    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads\n"
    )
    usage = {kernel.function: kernel for kernel in resource_usage(copy)}
    assert (usage["small"].spill_store_bytes, usage["small"].spill_load_bytes) == (12, 8)
    assert usage["copies"].spill_store_bytes == 0


def test_a_file_that_is_no_cubin_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_text("not machine code")
    with pytest.raises(ToolchainError, match=r"cannot read kernel\.cubin"):
        opcodes(path)
