"""The judge on GPUs: trusted workers own memory, answers and clock; runners execute candidates.

docs/decisions/0008-the-judge-on-gpus.md says who trusts whom, and why.
"""
