"""After a candidate was killed: its GPUs are proved clean, or put aside until a person looks.

Datacentre GPUs have no watchdog, and a driver may keep a killed process's memory. A GPU is clean
when it runs a kernel (`GpuPool.health`), holds no more processes than before, and has its memory
back. What does not come back is never reset from here; it is written down, and nothing runs on it.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandbox.gpu import nvml
from sandbox.gpu.pool import UnhealthyGpu

CLEAN_S = 30.0
_POLL_S = 0.2
# What a driver keeps for itself after work: contexts of the warm workers grow by this little.
_SLACK_BYTES = 256 << 20

Uses = Mapping[str, nvml.Use]


class Quarantine:
    """GPUs that nothing may run on, by UUID, in a file: it outlives this process and its judge."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def reasons(self) -> dict[str, str]:
        """Why each GPU was put aside; UnhealthyGpu if the file cannot be understood."""
        try:
            found = json.loads(self._file.read_text())
            return {str(uuid): str(reason) for uuid, reason in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError) as error:
            raise UnhealthyGpu(
                f"{self._file} says which GPUs may not be used and cannot be read ({error}): "
                "correct it, or delete it when all GPUs work"
            ) from error

    def put(self, uuids: Sequence[str], reason: str) -> None:
        """Puts GPUs aside."""
        known = self.reasons() | dict.fromkeys(uuids, reason)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(known, indent=2))
        written.replace(self._file)

    def refuse(self, uuids: Sequence[str]) -> None:
        """UnhealthyGpu if one of these was put aside, with what to do."""
        for uuid, reason in self.reasons().items():
            if uuid in uuids:
                raise UnhealthyGpu(
                    f"{uuid} is quarantined: {reason}. When it works again (nvidia-smi shows no "
                    f"process and no error), delete its line from {self._file}"
                )


def uses(uuids: Sequence[str]) -> dict[str, nvml.Use]:
    """Who uses each GPU and its memory, where NVML tells."""
    found = {uuid: nvml.use(uuid) for uuid in uuids}
    return {uuid: use for uuid, use in found.items() if use is not None}


def left_over(
    before: Uses, now: Callable[[Sequence[str]], Uses] = uses, within_s: float = CLEAN_S
) -> dict[str, str]:
    """What is still held of each GPU after `within_s` seconds, in words; {} when all is back."""
    deadline = time.monotonic() + within_s
    while True:
        found = _held(before, now(tuple(before)))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)


def _held(before: Uses, after: Uses) -> dict[str, str]:
    held = {}
    for uuid, was in before.items():
        use = after.get(uuid)
        if use is None:
            held[uuid] = "NVML no longer answers for it"
        elif use.processes > was.processes:
            held[uuid] = f"{use.processes - was.processes} processes are left on it"
        elif use.memory_bytes > was.memory_bytes + _SLACK_BYTES:
            more = (use.memory_bytes - was.memory_bytes) >> 20
            held[uuid] = f"{more} MiB of its memory did not come back"
    return held
