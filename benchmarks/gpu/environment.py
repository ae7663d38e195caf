"""What must be set before anything talks to the GPUs of this machine, and how they are doing."""

import os
from typing import Any

from pk_runtime.calibrate.machine import query
from pk_runtime.unicast import LOCAL

# Unicast only, in every library; and NCCL over the loopback interface, for nodes without a network.
SETTINGS = {
    **LOCAL,
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
}
CLOCK_FIELDS = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


def quiet_multicast() -> None:
    """Sets the variables for this process and its children, whatever they were before."""
    os.environ.update(SETTINGS)


def clocks() -> dict[str, Any]:
    """MHz, MHz, W and degrees of every GPU now, as nvidia-smi says them."""
    return {"fields": CLOCK_FIELDS, "gpus": query(CLOCK_FIELDS)}
