"""Kernels on GPUs, the host's side: memory that ranks share, launches, reports.

driver, abi, memory, channel and binding need nothing but Python, so that a process can be ready in
a tenth of a second; the other modules need torch.
"""
