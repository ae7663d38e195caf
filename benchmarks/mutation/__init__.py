"""Mechanical mutants of the shipped kernels, and what the simulator says of them."""
