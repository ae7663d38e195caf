"""Five ways to overlap GEMM and all-scatter, each a candidate: a file with `launch(peers, inputs,
outputs)`. `python3 -m pk_runtime.triton.examples` checks and times them on this node's GPUs."""

PATTERNS = (
    "bulk_synchronous",
    "producer_consumer",
    "fused_sequential",
    "workgroup_specialised",
    "warp_specialised",
)
"""Module names, in the order of how much they fuse."""
