"""The environment in which no library touches NVLink multicast: for every process that uses a GPU.

On nodes that several users share, a program that uses multicast can put the GPUs out of service.
"""

from collections.abc import Mapping
from types import MappingProxyType

NO_MULTICAST: Mapping[str, str] = MappingProxyType(
    {
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
)
# Besides, rendezvous over the loopback interface: for nodes without a network.
LOCAL: Mapping[str, str] = MappingProxyType(
    {**NO_MULTICAST, "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
)
