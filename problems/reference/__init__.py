"""The reference on threads of one process: ranks, their collectives, and defects of these."""
