"""What Python believes of C structures and functions, checked by the CUDA compiler."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from pk_runtime.compiler import INCLUDE
from pk_runtime.gpu import abi, binding, cuda_api, driver, memory
from pk_runtime.toolchain import gxx, nvcc

pytestmark = pytest.mark.usefixtures("needs_nvcc")

PK = "pk::sm90::"
STRUCTURES: dict[str, type[ctypes.Structure]] = {
    f"{PK}description": abi.Description,
    f"{PK}tensor_info": abi.TensorInfo,
    f"{PK}host_calls": abi.HostCalls,
    f"{PK}failure": abi.Failure,
    "CUmemLocation": memory.Location,
    "CUmemAllocationProp": memory.AllocationProperties,
    "CUmemAccessDesc": memory.AccessDescription,
    "CUipcMemHandle": cuda_api.IpcHandle,
}
# C's names where Python's differ.
FIELDS = {
    "requested_handle_types": "requestedHandleTypes",
    "win32_handle_meta_data": "win32HandleMetaData",
    ("CUmemAllocationProp", "flags"): "allocFlags",
}
CONSTANTS = {
    f"{PK}abi_version": abi.ABI_VERSION,
    f"{PK}max_blocks": binding.MAX_BLOCKS,
    f"int({PK}failure_kind::mailbox)": 8,
    f"int({PK}answer::found)": abi.FOUND,
    f"int({PK}answer::unknown)": abi.UNKNOWN,
    f"int({PK}answer::other_direction)": abi.OTHER_DIRECTION,
    f"offsetof({PK}launch, timeout_ns)": abi.TIMEOUT_OFFSET,
    f"offsetof({PK}launch, failures)": abi.FAILURES_OFFSET,
    f"int({PK}dtype::bf16)": binding.DTYPE_NUMBERS["bfloat16"],
    f"int({PK}dtype::fp16)": binding.DTYPE_NUMBERS["float16"],
    f"int({PK}dtype::fp32)": binding.DTYPE_NUMBERS["float32"],
    f"int({PK}dtype::i32)": binding.DTYPE_NUMBERS["int32"],
    "CUDA_ERROR_NOT_READY": cuda_api.NOT_READY,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": driver._MULTIPROCESSORS,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": driver._CAPABILITY_MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": driver._CAPABILITY_MINOR,
    "CU_STREAM_NON_BLOCKING": driver._NON_BLOCKING,
    "CU_EVENT_RECORD_EXTERNAL": driver._EXTERNAL,
    "CU_EVENT_DISABLE_TIMING": driver._NO_TIMING,
    "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": driver._CAPTURE_THREAD_LOCAL,
    "CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP": driver._PORTABLE_MAPPED,
    "CU_MEM_ALLOCATION_TYPE_PINNED": memory._PINNED,
    "CU_MEM_LOCATION_TYPE_DEVICE": memory._DEVICE,
    "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR": memory._POSIX_FD,
    "CU_MEM_ALLOC_GRANULARITY_MINIMUM": memory._MINIMUM,
    "CU_MEM_ACCESS_FLAGS_PROT_READWRITE": memory._READ_WRITE,
}
SIZES_OF_PARAMETERS = """
template <class R, class... P>
constexpr bool takes(R (*)(P...), std::initializer_list<std::size_t> sizes) {
  const std::size_t own[] = {sizeof(P)...};
  return sizes.size() == sizeof...(P) && std::equal(sizes.begin(), sizes.end(), own);
}
"""


def compiled(folder: Path, text: str) -> str:
    """What nvcc says of a source file; nothing if it is good."""
    source = folder / "layouts.cu"
    source.write_text(text)
    flags = ("-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a", f"-I{INCLUDE}", "-c")
    command = (nvcc().path, *flags, "-ccbin", gxx().path, source, "-o", folder / "layouts.o")
    done = subprocess.run(tuple(map(str, command)), capture_output=True, text=True, timeout=100)
    return done.stderr


def test_structures_and_constants_are_those_of_the_headers(tmp_path: Path) -> None:
    checks = []
    for name, structure in STRUCTURES.items():
        checks.append(f"sizeof({name}) == {ctypes.sizeof(structure)}")
        for field, *_ in structure._fields_:
            theirs = FIELDS.get((name, field), FIELDS.get(field, field))
            checks.append(f"offsetof({name}, {theirs}) == {getattr(structure, field).offset}")
    checks += [f"({name}) == {value}" for name, value in CONSTANTS.items()]
    asserts = "\n".join(f"static_assert({check});" for check in checks)
    assert compiled(tmp_path, f"#include <cuda.h>\n#include <pk/pk.h>\n{asserts}\n") == ""
    wrong = asserts.replace(f"{PK}abi_version) == ", f"{PK}abi_version) == 1000 + ")
    assert "abi_version" in compiled(tmp_path, f"#include <cuda.h>\n#include <pk/pk.h>\n{wrong}\n")


def test_the_drivers_functions_take_what_python_passes(tmp_path: Path) -> None:
    head = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <algorithm>\n"
    asserts = "\n".join(
        f"static_assert(takes({name}, {{{', '.join(str(ctypes.sizeof(p)) for p in types)}}}));"
        for name, types in cuda_api.SIGNATURES.items()
    )
    assert compiled(tmp_path, head + SIZES_OF_PARAMETERS + asserts) == ""
    wrong = asserts.replace("takes(cuInit, {4})", "takes(cuInit, {8})")
    assert "cuInit" in compiled(tmp_path, head + SIZES_OF_PARAMETERS + wrong)
