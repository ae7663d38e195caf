"""The simulator's timing mode held against measured times of real GPUs."""
