"""Measures GPUs and how they reach each other: `python -m pk_runtime.calibrate`.

docs/calibrate.md says what is measured, how, and how to read the tables.
"""
