"""One candidate at a time on this machine's GPUs, whichever processes judge here."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_S = 1800.0
_POLL_S = 0.05
# A name without a file: the kernel frees it with the process that holds it.
_NAME = "\0pkforge.gpus"


class GpusBusy(RuntimeError):  # noqa: N818 - a state of the machine
    """Another judge has had this machine's GPUs for too long."""


@contextmanager
def lease(timeout_s: float = WAIT_S, name: str = _NAME) -> Iterator[None]:
    """Holds the GPUs; waits for whoever has them. GpusBusy after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:
        while True:
            try:
                held.bind(name)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise GpusBusy(
                        f"another judge has used this machine's GPUs for {timeout_s:g} s: wait for "
                        "it, or end it"
                    ) from error
            time.sleep(_POLL_S)
        yield
