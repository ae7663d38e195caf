"""What runs under a checking tool: one kernel, several ranks on one GPU, without torch.

Every tensor and every piece of symmetric memory is an allocation of its own, of exactly its size,
so that the tool sees an access one byte beyond it.
"""

import ctypes as c
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pk_runtime.gpu.binding import (
    ALIGNMENT,
    DTYPE_NUMBERS,
    PITCH_BYTES,
    Binding,
    Library,
    TensorView,
)
from pk_runtime.gpu.cuda_api import DriverError, call
from pk_runtime.gpu.driver import Stream, driver, fill
from tests.gpu.tasks import Events, serve

# Instrumented kernels are slow. The report of a wait comes before the parent's patience ends.
TIMEOUT_S, SYNCHRONIZE_S = 10.0, 60.0
SPARE_BLOCKS = 8
_ONES = 0x3F803F80  # two bfloat16 or fp16 numbers, an fp32 number near 1
_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "int32": 4}


def allocate(nbytes: int, word: int) -> int:
    """Device memory of its own, filled with a 32-bit word; lives as long as the process."""
    size = -(-nbytes // 4) * 4
    made = c.c_uint64()
    call("cuMemAlloc_v2", c.byref(made), size)
    assert made.value % ALIGNMENT == 0
    stream = Stream()
    fill(made.value, word, size, stream)
    stream.synchronize(SYNCHRONIZE_S)
    stream.close()
    return made.value


def view(shape: list[int], dtype: str, word: int) -> TensorView:
    """A tensor whose rows are padded to PITCH_BYTES."""
    item = _ITEM_BYTES[dtype]
    unit = PITCH_BYTES // item
    pitch = -(-shape[-1] // unit) * unit
    rows = math.prod(shape[:-1])
    address = allocate(rows * pitch * item, word)
    planes, height = math.prod(shape[:-2]), shape[-2] if len(shape) > 1 else 1
    return TensorView(address, DTYPE_NUMBERS[dtype], planes, height, shape[-1], pitch, tuple(shape))


def run(library: str, tensors: Mapping[str, Any], ranks: int, launches: int) -> Events:
    """Launches of a kernel on `ranks` ranks of device 0; an event "done" or a report."""
    yield {"event": "ready"}
    driver(0)
    outputs = frozenset(name for name, about in tensors.items() if about["output"])
    views = {
        name: [view(about["shape"], about["dtype"], _ONES) for _ in range(ranks)]
        for name, about in tensors.items()
    }
    needed = Library(Path(library)).plan(0, ranks, views, outputs).needed
    memory = {
        (need.kind, need.name, rank): allocate(need.nbytes, 0)
        for need in needed
        for rank in range(ranks)
    }
    bindings = [
        Binding(
            *(Path(library), rank, ranks, views, outputs),
            lambda kind, name, rank: memory[kind, name, rank],
            timeout_s=TIMEOUT_S,
            cooperative=False,
        )
        for rank in range(ranks)
    ]
    about = Library(Path(library)).about
    blocks = min(bindings[0].most_blocks // ranks, about.comm_sms + SPARE_BLOCKS)
    streams = [Stream() for _ in bindings]
    for binding in bindings:
        binding.blocks = blocks
    try:
        for _ in range(launches):
            for binding, stream in zip(bindings, streams, strict=True):
                binding.launch(stream.handle)
        for stream in streams:
            stream.synchronize(SYNCHRONIZE_S)
        yield {"event": "done", "blocks": blocks, "ranks": ranks}
    except DriverError as error:
        said = [report for binding in bindings for report in binding.failures()]
        yield {"event": "report", "text": "; ".join(said) or str(error)}


if __name__ == "__main__":
    serve({"run": run})
