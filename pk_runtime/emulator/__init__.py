"""The GPU half of pk_runtime on a CPU: its own headers, compiled by g++ and run thread by thread.

The simulator of `pk_runtime.simulator` has headers of its own; what a GPU executes are those of
`include/pk/sm90`. The emulator runs these, with their inline PTX, for several virtual GPUs, under a
memory model with scopes and proxies, and names each pair of accesses that nothing orders.
`emulate` is the whole interface.
"""

from pk_runtime.emulator.builder import EmulatorBuilder
from pk_runtime.emulator.findings import Access, Finding
from pk_runtime.emulator.runner import Emulation, Emulator

__all__ = ["Access", "Emulation", "Emulator", "EmulatorBuilder", "Finding"]
