"""Breaks each check of the judge in turn: `python3 -m benchmarks.judge_mutation`."""
