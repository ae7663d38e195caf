"""Measurements on a node with several GPUs: `python3 -m benchmarks.gpu`, `benchmarks.gpu.sweep`."""
