"""The functions of libcuda through ctypes, typed and checked. Needs no other package."""

import ctypes as c
import functools

_LIBRARIES = (
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
)
_P, _I, _U, _N = c.c_void_p, c.c_int, c.c_uint, c.c_size_t
_ADDRESS = _HANDLE = _FLAGS64 = c.c_uint64


class IpcHandle(c.Structure):
    """CUipcMemHandle."""

    _fields_ = [("reserved", c.c_char * 64)]


# Parameter types by exported name; a test compares their sizes with cuda.h.
SIGNATURES: dict[str, tuple[type, ...]] = {
    "cuInit": (_U,),
    "cuGetErrorName": (_I, _P),
    "cuGetErrorString": (_I, _P),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetUuid_v2": (_P, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDeviceCanAccessPeer": (_P, _I, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuCtxSetCurrent": (_P,),
    "cuCtxGetDevice": (_P,),
    "cuCtxSetLimit": (_I, _N),
    "cuCtxResetPersistingL2Cache": (),
    "cuMemAlloc_v2": (_P, _N),
    "cuMemHostAlloc": (_P, _N, _U),
    "cuMemFreeHost": (_P,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _P, _N, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _ADDRESS, _N, _P),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _N, _P),
    "cuMemsetD32Async": (_ADDRESS, _U, _N, _P),
    "cuStreamCreateWithPriority": (_P, _U, _I),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamQuery": (_P,),
    "cuStreamWaitEvent": (_P, _P, _U),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuEventCreate": (_P, _U),
    "cuEventDestroy_v2": (_P,),
    "cuEventQuery": (_P,),
    "cuEventRecordWithFlags": (_P, _P, _U),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, _FLAGS64),
    "cuGraphLaunch": (_P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
    "cuMemGetAllocationGranularity": (_P, _P, _I),
    "cuMemCreate": (_P, _N, _P, _FLAGS64),
    "cuMemRelease": (_HANDLE,),
    "cuMemExportToShareableHandle": (_P, _HANDLE, _I, _FLAGS64),
    "cuMemImportFromShareableHandle": (_P, _P, _I),
    "cuMemAddressReserve": (_P, _N, _N, _ADDRESS, _FLAGS64),
    "cuMemAddressFree": (_ADDRESS, _N),
    "cuMemMap": (_ADDRESS, _N, _N, _HANDLE, _FLAGS64),
    "cuMemUnmap": (_ADDRESS, _N),
    "cuMemSetAccess": (_ADDRESS, _N, _P, _N),
    "cuMemGetAddressRange_v2": (_P, _P, _ADDRESS),
    "cuIpcGetMemHandle": (_P, _ADDRESS),
    "cuIpcOpenMemHandle_v2": (_P, IpcHandle, _U),
    "cuIpcCloseMemHandle": (_ADDRESS,),
}

NOT_READY = 600

_LOST = "the process has lost its GPU context: read the kernel's report, then start a new process"
_HINTS = {
    1: "an argument does not fit this driver or device",
    2: "the device's memory is full: use smaller shapes or end what else runs there",
    100: "the driver sees no GPU: look at /dev/nvidia* and CUDA_VISIBLE_DEVICES",
    101: "there is no device of this number",
    201: "no device is current in this thread: call driver(device) first",
    304: "the system refused: raise the limit of open files (`ulimit -n`)",
    700: f"a kernel touched memory that is not its own; {_LOST}",
    715: f"a kernel executed an illegal instruction; {_LOST}",
    716: f"a kernel made a misaligned access; {_LOST}",
    719: f"a kernel ended itself or was broken off; {_LOST}",
    720: "the grid cannot be resident at once: ask for fewer blocks",
    801: "this driver or device cannot do it",
    802: "the GPUs are not ready: is the fabric manager running?",
    803: "driver and libcuda are of different versions",
    900: "not allowed while a graph is captured: call it once before",
}


class DriverError(RuntimeError):
    """A call that the driver refused: which, why, what to do. `lost`: the context is unusable."""

    def __init__(self, call: str, code: int, name: str, hint: str) -> None:
        self.call, self.code, self.name = call, code, name
        self.lost = 700 <= code < 720
        super().__init__(f"{call}: {name}" + (f": {hint}" if hint else ""))


class NoDriverError(DriverError):
    """There is no NVIDIA driver on this machine."""

    def __init__(self, why: str) -> None:
        super().__init__("libcuda", -1, why, "")
        self.args = (
            f"no NVIDIA driver: {why}; run this on a machine with NVIDIA GPUs, "
            "or use a sim: target, which needs none",
        )


class DriverTimeoutError(DriverError):
    """Work on the device was not done by the deadline."""

    def __init__(self, what: str, timeout_s: float) -> None:
        super().__init__(what, NOT_READY, f"not done within {timeout_s:g} s", "")


def call(name: str, *arguments: object) -> None:
    """Calls a function of the driver; DriverError unless it succeeds."""
    if code := query(name, *arguments):
        raise failure(name, code)


def query(name: str, *arguments: object) -> int:
    """Calls a function of the driver and returns its code; NoDriverError if there is no driver."""
    function = getattr(_library(), name)
    return int(function(*arguments))


def failure(name: str, code: int) -> DriverError:
    """The error of a call that returned `code`."""
    text = c.c_char_p()
    known = query("cuGetErrorName", code, c.byref(text)) == 0 and text.value
    return DriverError(name, code, known.decode() if known else f"error {code}", _hint(code))


def _hint(code: int) -> str:
    return _HINTS.get(code, _LOST if 700 <= code < 720 else "")


@functools.cache
def _library() -> c.CDLL:
    problems = []
    for name in _LIBRARIES:
        try:
            library = c.CDLL(name)
        except OSError as error:
            problems.append(str(error))
            continue
        for function, parameters in SIGNATURES.items():
            if not hasattr(library, function):
                raise NoDriverError(f"{name} has no {function}: it is too old")
            getattr(library, function).argtypes = parameters
        if code := library.cuInit(0):
            raise DriverError("cuInit", code, f"error {code}", _hint(code))
        return library
    raise NoDriverError(problems[0])
