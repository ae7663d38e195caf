"""Whether this machine is the one that a cuda: target names."""

import torch

from pk_runtime.gpu.cuda_api import DriverError, NoDriverError
from pk_runtime.gpu.driver import (
    can_access_peer,
    capability,
    device_count,
    device_name,
    multiprocessors,
)
from pk_runtime.target import Target


class TargetNotAvailable(ValueError):  # noqa: N818 - names the state of the machine
    """This machine cannot judge on that target; the message says what to use instead."""


def require(target: Target) -> None:
    """Raises TargetNotAvailable, with the reason, unless this machine has the target's GPUs."""
    reason = unavailable(target)
    if reason is not None:
        raise TargetNotAvailable(f"{target} is not this machine: {reason}. {_instead(target)}")


def unavailable(target: Target) -> str | None:
    """Why a target cannot be judged on here; None if it can. Simulated ones always can."""
    if target.backend == "sim":
        return None
    try:
        return _mismatch(target)
    except NoDriverError:
        return f"it needs {target.world_size} GPUs, and there is no NVIDIA driver here"
    except DriverError as error:
        return f"the NVIDIA driver does not work: {error}"


def _mismatch(target: Target) -> str | None:
    sheet, world = target.sheet, target.world_size
    count = device_count()
    if count < world:
        return f"it needs {world} GPUs, and this machine has {count}"
    if torch.version.cuda is None:
        return f"this torch ({torch.__version__}) is built without CUDA"
    model = sheet.name.split("x")[0].lower()
    for device in range(world):
        name, sms = device_name(device), multiprocessors(device)
        major, minor = capability(device)
        if model not in name.lower():
            return f"GPU {device} is a {name}, and the sheet describes {sheet.title}"
        if sms != sheet.chip.sms or f"sm_{major}{minor}" != sheet.architecture.rstrip("a"):
            return (
                f"GPU {device} has {sms} SMs of sm_{major}{minor}, and the sheet says "
                f"{sheet.chip.sms} of {sheet.architecture}"
            )
        for peer in range(world):
            if peer != device and not can_access_peer(device, peer):
                return f"GPU {device} cannot reach the memory of GPU {peer}"
    return None


def _instead(target: Target) -> str:
    return (
        f"Use sim:{target.sheet.name}, which needs no GPU, or run this on a machine with "
        f"{target.sheet.title}"
    )
