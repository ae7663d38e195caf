"""The optimizer: policies, the one loop, and what models are told."""
