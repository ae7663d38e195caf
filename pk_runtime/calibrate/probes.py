"""The probes (`probes.cu`) as Python functions: built with nvcc, called through ctypes, checked."""

import ctypes as c
from pathlib import Path

import torch

from pk_runtime.execution import Command, Limits, LocalExecutor
from pk_runtime.toolchain import ToolchainError, gxx, nvcc, search_path

SOURCE = Path(__file__).parent / "probes.cu"
MAX_PEERS = 8
BUILD_LIMITS = Limits(wall_s=180, memory_bytes=4 << 30)
FLAGS = ("-std=c++20", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-shared")

KINDS = {"store": 0, "load": 0, "tma_store": 1, "tma_reduce_add_bf16": 2, "tma_load": 3}
STORE_FLAG, ADD_FLAG = 0, 1


class ProbeError(RuntimeError):
    """A probe could not be started, or a wait inside one ran out."""


class PartlyMeasuredError(ProbeError):
    """Some points of a section failed; `rows` are those that did not."""

    def __init__(self, message: str, rows: list[dict[str, object]]) -> None:
        super().__init__(message)
        self.rows = rows


class Transfer(c.Structure):
    """`struct transfer` of probe_transfers.cuh; the addresses are device pointers."""

    _fields_ = [
        *((name, c.c_int32) for name in (
            "kind", "device", "blocks", "chunk", "in_flight", "peers",
        )),
        *((name, c.c_uint64) for name in ("window", "total", "duration_ns")),
        ("dst", c.c_void_p * MAX_PEERS),
        ("src", c.c_void_p * MAX_PEERS),
        ("moved", c.c_void_p),
        ("status", c.c_void_p),
    ]  # fmt: skip


_INT, _SIZE, _POINTER = c.c_int, c.c_uint64, c.c_void_p
_FLAG = c.c_uint32
_SIGNATURES = {
    "enable_peer": (_INT, _INT),
    "allocate_status": (c.POINTER(_POINTER),),
    "copy": (_INT, _POINTER, _INT, _POINTER, _INT, _SIZE, _INT, _POINTER),
    "transfer": (c.POINTER(Transfer), _POINTER),
    "ping": (_INT, _INT, _POINTER, _POINTER, _INT, _FLAG, _INT, _POINTER, _POINTER),
    "local_ping": (_INT, _POINTER, _FLAG, _INT, _POINTER, _POINTER),
    "barrier": (_INT, c.POINTER(_POINTER), _INT, _INT, _FLAG, _INT, _POINTER, _POINTER),
    "mbarrier": (_INT, _INT, _POINTER, _POINTER),
    "chase": (_INT, _POINTER, _INT, _POINTER, _POINTER),
    "read": (_INT, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "spin": (_INT, _SIZE, _POINTER),
    "empty": (_INT, _INT, _INT, _INT, _POINTER),
    "graph": (_INT, _INT, _INT, _INT, _POINTER, c.POINTER(_POINTER)),
    "graph_launch": (_INT, _POINTER, _POINTER),
    "graph_free": (_POINTER,),
}


def build(folder: Path) -> Path:
    """Compiles the probes into `folder` and returns the library; ToolchainError with the reason."""
    tool, host = nvcc(), gxx()
    library = folder / "probes.so"
    argv = (
        *(str(tool.path), *FLAGS, "-Xcompiler", "-fPIC", "-ccbin", str(host.path)),
        *(str(SOURCE), "-o", str(library)),
    )
    env = {"PATH": search_path(tool, host), "LC_ALL": "C", "TMPDIR": str(folder)}
    done = LocalExecutor().run(Command(argv, folder, (SOURCE.parent,), env, BUILD_LIMITS))
    if not done.ok or not library.is_file():
        text = (done.stderr or done.stdout).decode(errors="replace").strip()[-2000:]
        raise ToolchainError(f"the probes do not build with {tool.path}: {text or done.exceeded}")
    return library


class Probes:
    """The functions of a built library. ProbeError names the one that failed and CUDA's reason."""

    def __init__(self, library: Path) -> None:
        self._library = c.CDLL(str(library))
        self._library.probe_error.restype = c.c_char_p
        if self._library.probe_transfer_bytes() != c.sizeof(Transfer):
            raise ProbeError(f"{library} was built from another version of {SOURCE.name}")
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, f"probe_{name}")
            function.argtypes, function.restype = arguments, c.c_int

    def call(self, name: str, *arguments: object) -> None:
        """`probe_<name>(arguments...)`, whose first argument is the device where there is one."""
        code = getattr(self._library, f"probe_{name}")(*arguments)
        if code:
            reason = self._library.probe_error(code).decode(errors="replace")
            raise ProbeError(f"probe {name}: {reason} (CUDA error {code})")

    def on(self, device: int, name: str, *arguments: object) -> None:
        """The same for a function that takes the device first; torch's current device is kept."""
        with torch.cuda.device(device):
            self.call(name, device, *arguments)

    def transfer(self, work: Transfer, stream: int) -> None:
        """Starts one GPU's part of a transfer."""
        with torch.cuda.device(work.device):
            self.call("transfer", c.byref(work), stream)
