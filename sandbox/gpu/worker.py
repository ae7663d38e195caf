"""The trusted process of one GPU: `python -m sandbox.gpu.worker`, driven by the judge.

It owns the memory that runners work on, makes inputs from secret seeds, computes reference and
golden, compares, and runs the baseline. It stays warm between candidates and ends with the judge.
All workers get the same command at the same time, because most of them use collectives.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pk_runtime.gpu.channel import adopt
from pk_runtime.gpu.driver import device_uuid, driver_version
from pk_runtime.gpu.memory import Allocation
from problems.fields import MAX_EXTENT
from problems.registry import get
from sandbox.gpu import nvml
from sandbox.gpu.baseline import Baseline, Meeting, healthy
from sandbox.gpu.case import Case
from sandbox.gpu.device import Helpers
from sandbox.gpu.memory import Block, allocate
from sandbox.gpu.serve import Refused, Reply, close_files, number, numbers, serve, text

IDLE_S = 86_400.0
_GROUP_S = 60.0
_MOST_BLOCK_BYTES = 24 << 30


class Worker:
    """Commands of the judge on one rank."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self._rank, self._device = rank, device
        world_group = dist.group.WORLD
        assert world_group is not None
        self._groups: dict[int, Any] = {world: world_group}
        for size in range(2, world):
            self._groups[size] = dist.new_group(list(range(size)))
        self._cases: dict[str, Case] = {}
        self._baselines: dict[str, Baseline] = {}
        self._blocks: dict[str, Block] = {}
        self._meeting: Meeting | None = None

    def handle(self, name: str, body: Mapping[str, Any], files: tuple[int, ...]) -> Reply:
        """Does one command."""
        action = getattr(self, f"_do_{name}", None)
        if action is None:
            close_files(files)
            raise Refused(f"a worker knows no command {name!r}")
        if name == "meet":
            return Reply(self._do_meet(body, files))
        close_files(files)
        reply: Reply | dict[str, Any] = action(body)
        return reply if isinstance(reply, Reply) else Reply(reply)

    def _do_hello(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        about: dict[str, Any] = {"torch": str(torch.__version__), "device": str(self._device)}
        if self._device.type == "cuda":
            found = torch.cuda.get_device_properties(self._device)
            about |= {
                "name": found.name,
                "uuid": device_uuid(self._device.index),
                "sms": found.multi_processor_count,
                "l2_bytes": int(getattr(found, "L2_cache_size", 0)),
                "driver": str(driver_version()),
                "cuda": str(torch.version.cuda),
                "nccl": _nccl_version(),
                "libcuda": _loaded("libcuda.so"),
            }
        return about

    def _do_health(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        wrong = healthy(self._device, self._groups[max(self._groups)])
        if wrong is not None:
            raise Refused(wrong)
        return {}

    def _do_clocks(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        cuda = self._device.type == "cuda"
        return {"clocks": nvml.sample(device_uuid(self._device.index)) if cuda else {}}

    def _do_traffic(self, _body: Mapping[str, Any]) -> dict[str, Any]:
        """Bytes sent and received over NVLink so far; null where nobody counts them."""
        cuda = self._device.type == "cuda"
        return {"nvlink": nvml.nvlink_bytes(device_uuid(self._device.index)) if cuda else None}

    def _do_meet(self, body: Mapping[str, Any], files: tuple[int, ...]) -> dict[str, Any]:
        """Takes the meeting memory of every rank, for latencies of the baseline."""
        nbytes = number(body, "nbytes", 1, 1 << 30)
        if self._device.type != "cuda":
            close_files(files)
            return {}
        memory = [Allocation.receive(file, nbytes, self._device.index) for file in files]
        helpers = Helpers(Path(text(body, "helpers")))
        self._meeting = Meeting(helpers, [m.address for m in memory], self._rank)
        # Once now, because nothing can be loaded while a graph is captured.
        self._meeting.hold(torch.cuda.current_stream(self._device).cuda_stream)
        torch.cuda.synchronize(self._device)
        return {}

    def _do_lend(self, body: Mapping[str, Any]) -> Reply:
        """New zeroed memory, kept under a key until it is freed."""
        key, nbytes = text(body, "key"), number(body, "nbytes", 1, _MOST_BLOCK_BYTES)
        self._do_free({"key": key})
        block = allocate(self._device, nbytes)
        block.bytes.zero_()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._blocks[key] = block
        return Reply({}, [block.export()])

    def _do_free(self, body: Mapping[str, Any]) -> dict[str, Any]:
        block = self._blocks.pop(text(body, "key"), None)
        if block is not None:
            block.close()
        return {}

    def _do_open(self, body: Mapping[str, Any]) -> Reply:
        """Makes the memory of a case; answers its layout and lends it."""
        key = text(body, "case")
        problem = get(text(body, "problem"))
        dims = {letter: number(body.get("dims", {}), letter, 1, MAX_EXTENT)
                for letter in problem.shapes[0].dims}  # fmt: skip
        group = self._groups.get(number(body, "world", 1, 64))
        if group is None:
            raise Refused(f"there are {len(self._groups)} ranks")
        self._do_close({"case": key})
        case = Case(problem, dims, group, self._device, number(body, "sets", 1, 256))
        self._cases[key] = case
        return Reply(case.layout, [case.block.export()])

    def _do_fill(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._case(body).fill(numbers(body, "seeds"), body.get("on_device") is True)
        return {}

    def _do_poison(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._case(body).poison()
        return {}

    def _do_withhold(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._case(body).withhold(number(body, "set", 0, 255), number(body, "keeper", 0, 255))
        return {}

    def _do_poisoned(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"poisoned": self._case(body).poisoned()}

    def _do_verify(self, body: Mapping[str, Any]) -> dict[str, Any]:
        remember = body.get("remember") is True
        return self._case(body).verify(numbers(body, "sets"), remember=remember)

    def _do_diagnose(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._case(body).diagnose(number(body, "set", 0, 255))

    def _do_fetch(self, body: Mapping[str, Any]) -> Reply:
        fields, files = self._case(body).export_outputs(number(body, "set", 0, 255))
        return Reply(fields, files)

    def _do_close(self, body: Mapping[str, Any]) -> dict[str, Any]:
        key = text(body, "case")
        self._baselines.pop(key, None)
        case = self._cases.pop(key, None)
        if case is not None:
            case.close()
        del case
        if self._device.type == "cuda":
            # Runners and the memory lent to them do not come out of PyTorch's cache.
            torch.cuda.empty_cache()
        return {}

    def _do_baseline(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Readies the baseline of a case, and captures its graph if there is an order."""
        key = text(body, "case")
        if key not in self._baselines:
            self._baselines[key] = Baseline(self._case(body), self._meeting)
        if body.get("order"):
            self._baselines[key].capture(numbers(body, "order"))
        return {}

    def _do_run(self, body: Mapping[str, Any]) -> dict[str, Any]:
        times = number(body, "times", 1, 1 << 20)
        self._baseline(body).run(text(body, "kind"), numbers(body, "order"), times)
        return {}

    def _do_latency(self, body: Mapping[str, Any]) -> dict[str, Any]:
        order = numbers(body, "order")
        return {"times_us": self._baseline(body).latencies_us(text(body, "kind"), order)}

    def _case(self, body: Mapping[str, Any]) -> Case:
        key = text(body, "case")
        if key not in self._cases:
            raise Refused(f"there is no case {key!r}")
        return self._cases[key]

    def _baseline(self, body: Mapping[str, Any]) -> Baseline:
        key = text(body, "case")
        if key not in self._baselines:
            raise Refused(f"the baseline of case {key!r} is not ready")
        return self._baselines[key]


def _nccl_version() -> str:
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _loaded(name: str) -> str:
    """Where this process loaded a library from; empty if it did not."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if name in line:
            return line.split(maxsplit=5)[-1]
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Joins the group of all workers and serves until the judge is gone."""
    parser = argparse.ArgumentParser(description="The trusted process of one GPU.")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--store", type=Path, required=True, help="file for the rendezvous")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    chosen = parser.parse_args(arguments)
    channel = adopt(chosen.channel)
    cuda = chosen.device == "cuda"
    device = torch.device("cuda", chosen.rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        init_method=f"file://{chosen.store}",
        rank=chosen.rank,
        world_size=chosen.world,
        timeout=timedelta(seconds=_GROUP_S),
        device_id=device if cuda else None,
    )
    serve(channel, Worker(chosen.rank, chosen.world, device), idle_s=IDLE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
