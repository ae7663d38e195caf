"""GPU tests run where there are GPUs; elsewhere they are skipped for that reason alone."""

import pytest
import torch

WORLD = 4


@pytest.fixture(scope="session", autouse=True)
def needs_gpus() -> None:
    """Skips on a machine with fewer than four Hopper GPUs."""
    found = torch.cuda.device_count()
    if found < WORLD or torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip(f"needs {WORLD} Hopper GPUs; this machine has {found} GPUs")
