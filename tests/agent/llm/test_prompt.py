"""What a model is told."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from agent.llm.facts import TOLERANCE_RULES, machine_text, problem_text, roofline_text
from agent.llm.prompt import (
    EVIDENCE_CHARACTERS,
    Prompt,
    Situation,
    history_text,
    verdict_text,
)
from agent.llm.reply import FORMAT
from pk_runtime import guide
from pk_runtime.kernels import shipped
from pk_runtime.target import parse_target
from problems.contract import Tolerance
from problems.description import Description, describe
from problems.registry import catalogue, get
from tests.agent.history import attempt, searched

TARGET = parse_target("sim:h200x4")


def gemm_rs() -> Description:
    return describe(get("gemm_reducescatter"), 4)


def test_the_problem_is_stated_with_tensors_of_one_rank_and_the_tolerance_rule() -> None:
    text = problem_text(gemm_rs())
    assert get("gemm_reducescatter").statement.strip() in text
    assert TOLERANCE_RULES["T1"] in text
    assert "m8192n8192k8192 (bench): M=8192 N=8192 K=8192; " in text
    assert "a[8192,2048] bfloat16 b[2048,8192] bfloat16 -> c[2048,8192] bfloat16" in text


def test_every_problem_of_the_catalogue_can_be_told() -> None:
    for problem in catalogue():
        told = describe(problem, 4)
        assert problem_text(told)
        assert "PyTorch + NCCL" in roofline_text(told, TARGET, None)


def test_the_machine_is_numbers_with_units_in_their_names() -> None:
    text = machine_text(TARGET)
    assert "link_out_bytes_per_us=352000" in text
    assert "op=all_reduce, library=nccl, mode=graph" in text
    assert "sms=132" in text
    assert "object at" not in text


def test_the_roofline_gives_every_term_and_the_head_room() -> None:
    text = roofline_text(gemm_rs(), TARGET, None)
    line = next(line for line in text.splitlines() if line.startswith("- m8192n8192k8192"))
    assert "compute 277." in line
    assert "(compute)" in line
    assert "(simulated), so at most" in line


def test_only_the_asked_shape_is_given_when_one_is_asked() -> None:
    shapes = [shape.name for shape in gemm_rs().shapes]
    text = roofline_text(gemm_rs(), TARGET, shapes[-1])
    assert [name for name in shapes if f"- {name}:" in text] == [shapes[-1]]


def test_stable_facts_come_first_and_the_question_last() -> None:
    prompt = Prompt(gemm_rs(), TARGET, None)
    history = searched(1.0, "deadlock", 1.2)
    first = prompt.build(Situation(history[:1], history[0]))
    later = prompt.build(Situation(history, history[1], complaint="no code", advice="turn left"))
    assert first[0] == later[0]
    assert guide.text() in first[0]["content"]
    common = first[1]["content"].partition("# History")[0]
    assert later[1]["content"].startswith(common)
    user = later[1]["content"]
    headings = [line for line in user.splitlines() if line.startswith("# ")]
    assert [heading.split(":")[0].split(" (")[0] for heading in headings] == [
        "# Problem",
        "# Machine",
        "# Roofline of the timed shapes",
        "# History",
        "# The kernel to change",
        "# Its verdict",
        "# Your last reply could not be used",
        "# Advice",
        "# Your answer",
    ]
    assert history[1].candidate.source.strip() in user
    assert user.endswith(FORMAT)


def test_from_scratch_a_kernel_of_another_problem_is_shown() -> None:
    example = shipped("allreduce")[0]
    user = Prompt(gemm_rs(), TARGET, None).build(Situation((), None, example))[1]["content"]
    assert "# A kernel of another problem, as an example" in user
    assert example.source.strip() in user
    assert "# History" not in user


def test_history_is_the_last_five_and_the_best_three() -> None:
    history = searched(1.0, 1.9, 1.8, 1.7, 1.1, "crashed", 1.2, 1.3, 1.4, 1.5)
    lines = history_text(history, 8).splitlines()
    shown = [int(line.split()[2].rstrip(":")) for line in lines if line.startswith("- ")]
    assert shown == [2, 3, 4, 6, 7, 8, 9, 10]
    assert lines[0] == "# History: 10 attempts so far, times are simulated"
    assert "crashed: judged crashed" in lines[4]
    assert "526.3 us, 1.900x, nvlink" in lines[1]


def test_a_cut_history_says_so() -> None:
    text = history_text(searched(1.0, 1.1, 1.2, 1.3), 2)
    assert "(cut to 2 attempts: the context window is nearly full)" in text
    assert text.count("- attempt") == 2


def test_a_verdict_is_status_times_and_evidence_cut_in_the_middle() -> None:
    record = attempt(1, "wrong_output").verdict
    assert record is not None
    long = replace(record, evidence={"summary": "first", "log": "x" * 99_999, "last": "end"})
    text = verdict_text(long)
    assert text.startswith("status: wrong_output (stage check)\nevidence: ")
    assert len(text) < EVIDENCE_CHARACTERS + 200
    assert "first" in text
    assert "end" in text
    assert "characters cut" in text
    good = verdict_text(attempt(1, 1.25).verdict)
    assert "m8192: 800.0 us simulated, 1.250x over PyTorch + NCCL, 38% of the roofline" in good
    assert verdict_text(None) == "not judged yet"


@pytest.mark.parametrize("tolerance", get_args(Tolerance))
def test_every_tolerance_has_a_rule(tolerance: Tolerance) -> None:
    told = problem_text(replace(gemm_rs(), tolerance=tolerance))
    assert f"Tolerance {tolerance}: " in told
