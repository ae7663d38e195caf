"""Cheating and honest candidates with their verdicts: `python3 -m benchmarks.attacks`."""
