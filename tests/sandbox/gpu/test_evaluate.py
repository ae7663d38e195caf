"""The command that GPU nodes have, and what it says on machines that are none."""

import dataclasses
import json
from pathlib import Path

import pytest

from pk_runtime.gpu import driver
from pk_runtime.target import parse_target
from sandbox.explain import explain
from sandbox.gpu import machine, nvml
from sandbox.gpu.evaluate import CORRECT, NO_VERDICT, USAGE, main
from sandbox.verdict import Timing, Verdict

KERNEL = Path(__file__).parents[3] / "pk_runtime" / "kernels" / "alltoall.cu"
ON_GPUS = parse_target("cuda:h200x4")


def run(*arguments: str | Path) -> int:
    return main([str(argument) for argument in arguments])


@pytest.mark.slow
def test_simulated_targets_work_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "verdicts.json"
    code = run(
        *(KERNEL, "--problem", "alltoall", "--target", "sim:h200x4", "--quick", "--repeat", "2"),
        *("--shape", "m1024n1024", "--seed", "5", "--json", told, "--cache", tmp_path),
        *("-k", "depth=4", "--no-isolation"),
    )
    assert code == CORRECT
    shown = capsys.readouterr()
    assert shown.out.count("correct: every check passed") == 2
    assert "(run 2 of 2)" in shown.out
    assert "candidates an hour" in shown.out
    assert "check shape=tiny world_size=4" in shown.err
    first, second = (Verdict.from_json(item) for item in json.loads(told.read_text()))
    assert first == second
    assert first.knobs["depth"] == 4


def test_without_gpus_it_says_what_to_use_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if machine.unavailable(ON_GPUS) is None:
        pytest.skip("this machine has the GPUs")
    code = run(KERNEL, "--problem", "alltoall", "--cache", tmp_path, "--no-isolation")
    assert code == NO_VERDICT
    assert "Use sim:h200x4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("missing.cu", "--problem", "alltoall"), "missing.cu"),
        ((KERNEL, "--problem", "altoall"), "alltoall"),
        ((KERNEL, "--problem", "alltoall", "--target", "cuda:h100"), "unknown target"),
        ((KERNEL, "--problem", "alltoall", "-k", "depth"), "not name=number"),
        ((KERNEL, "--problem", "alltoall", "-k", "depth=x"), "not name=number"),
        ((Path(__file__).parent / "driver", "--problem", "alltoall"), "neither .cu nor .py"),
    ],
)
def test_wrong_arguments_are_told(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--no-isolation") == USAGE
    assert words in capsys.readouterr().err


def test_a_machine_must_be_the_one_of_the_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {
        "device_count": lambda: 4,
        "device_name": lambda device: "NVIDIA H200",
        "multiprocessors": lambda device: 132,
        "capability": lambda device: (9, 0),
        "can_access_peer": lambda device, peer: True,
    }
    for name, fact in facts.items():
        assert hasattr(driver, name)
        monkeypatch.setattr(machine, name, fact)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert machine.unavailable(ON_GPUS) is None
    for name, fact, words in (
        ("device_count", lambda: 2, "needs 4 GPUs, and this machine has 2"),
        ("device_name", lambda device: "NVIDIA H100 80GB HBM3", "is a NVIDIA H100"),
        ("multiprocessors", lambda device: 114, "114 SMs of sm_90"),
        ("capability", lambda device: (10, 0), "sm_100"),
        ("can_access_peer", lambda device, peer: False, "cannot reach the memory of GPU"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(machine, name, fact)
            reason = machine.unavailable(ON_GPUS)
            assert reason is not None
            assert words in reason
            with pytest.raises(machine.TargetNotAvailable, match="Use sim:h200x4"):
                machine.require(ON_GPUS)
    assert machine.unavailable(parse_target("sim:h200x4")) is None


def test_without_nvml_nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_LIBRARIES", ("there-is-no-such-library.so",))
    nvml._library.cache_clear()
    assert nvml.sample("GPU-0") == {}
    nvml._library.cache_clear()


def test_measured_times_are_explained_in_one_line_each() -> None:
    spread = {"median_us": 410.25, "p10_us": 409.0, "p90_us": 412.0, "count": 5}
    timing = Timing(
        "m8192", "measured", 410.25, 718.0, 1.75, 367.0, 0.89, "compute",
        {
            "baseline": "PyTorch + NCCL",
            "throughput": {"candidate": spread, "graph": {**spread, "median_us": 718.0}},
            "latency": {"candidate": spread, "left_out": "x"},
            "achieved": {"tflops": 670.1, "nvlink_gb_per_s": 245.5},
            "clocks": [{"sm_mhz": 1755}, {"sm_mhz": 1980}, {}],
        },
    )  # fmt: skip
    verdict = Verdict(
        "correct", "done", "p", "cuda:h200x4", "pk", "0" * 64, "full", 1,
        {"summary": "Right.", "seconds": {"build": 7.5, "check": 2.0}}, (timing,),
    )  # fmt: skip
    text = " ".join(" ".join(explain(verdict)).split())
    assert (
        "m8192: throughput candidate 410.2, graph 718.0 us; latency candidate 410.2 us; "
        "670.1 tflops; 245.5 nvlink gb/s; 1755 to 1980 MHz" in text
    )
    assert "where the time went: build 7.5 s, check 2.0 s" in text
    bare = dataclasses.replace(timing, detail={})
    assert explain(dataclasses.replace(verdict, timings=(bare,)))
