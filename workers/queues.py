"""Names of queues and of the one task. A queue is named after what its workers can do."""

CPU_QUEUE = "cpu"
TASK = "workers.run_job"


def queue_of(target: str) -> str:
    """The queue of the workers that can run jobs on a target, named after their capability.

    `sim:h200x4` needs any CPU: `cpu`; `cuda:h200x4` a node with such GPUs: `gpu.h200.x4`.
    """
    backend, _, machine = target.partition(":")
    if backend != "cuda":
        return CPU_QUEUE
    sheet, _, world_size = machine.rpartition("x")
    return f"gpu.{sheet}.x{world_size}"
