"""What must be set before anything talks to the GPUs of this machine."""

import os

# Unicast only, in every library; and NCCL over the loopback interface, for nodes without a network.
SETTINGS = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
}


def quiet_multicast() -> None:
    """Sets the variables for this process and its children, whatever they were before."""
    os.environ.update(SETTINGS)
