"""Settings of the tests of problems."""

import torch

# Ranks are threads: more threads inside each operation would only compete with them, and OpenMP's
# spinning makes that very slow on a busy machine.
torch.set_num_threads(1)
