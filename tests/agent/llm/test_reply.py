"""Reading replies: what is taken, and what the model is told about the rest."""

from __future__ import annotations

import pytest

from agent.llm.reply import FORMAT, UnusableReplyError, parse_reply
from tests.agent.analytic import kernel

SOURCE = kernel("reply").source


def reply(
    code: str = SOURCE,
    hypothesis: str = "hypothesis: deeper ring hides the NVLink latency",
    fence: str = "```cpp",
    knobs: str = "knobs: none",
) -> str:
    return f"{hypothesis}\npredicted_us: 512.5\n{knobs}\n{fence}\n{code}```\n"


def test_a_reply_in_the_asked_form() -> None:
    parsed = parse_reply(reply(knobs="knobs: stages=4, super_m = 8"))
    assert parsed.candidate.source == SOURCE
    assert parsed.candidate.knobs == {"stages": 4, "super_m": 8}
    assert parsed.hypothesis == "deeper ring hides the NVLink latency"
    assert parsed.predicted_us == 512.5


@pytest.mark.parametrize("fence", ["```cpp", "```c++", "```cuda", "``` CPP", "  ```cu"])
def test_fences_that_models_write(fence: str) -> None:
    assert parse_reply(reply(fence=fence)).candidate.source == SOURCE


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("predicted_us: 1,234 us", 1234.0),
        ("predicted_us: ~510", 510.0),
        ("**predicted_us:** 4.9e2", 490.0),
        ("predicted_us: unknown", None),
        ("", None),
    ],
)
def test_predictions(line: str, expected: float | None) -> None:
    text = reply().replace("predicted_us: 512.5", line)
    assert parse_reply(text).predicted_us == expected


def test_markdown_around_the_fields_and_prose_before_them() -> None:
    text = "Let me think.\n\n- **hypothesis**: rotate tiles\n" + reply(hypothesis="")
    assert parse_reply(text).hypothesis == "rotate tiles"


def test_fields_inside_the_code_do_not_count() -> None:
    code = f"// hypothesis: from the code\n{SOURCE}"
    with pytest.raises(UnusableReplyError, match="no line 'hypothesis"):
        parse_reply(reply(code=code, hypothesis=""))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("I cannot do that.", "there is no ```cpp block"),
        ("", "there is no ```cpp block"),
        ("```python\nprint()\n```", "there is no ```cpp block"),
        (reply() + reply(), "there are 2 ```cpp blocks: send exactly one"),
        (reply().removesuffix("```\n"), "is not closed, so the file is cut off"),
        (reply(hypothesis=""), "no line 'hypothesis"),
        (reply(code="\n"), "the file is empty"),
        (reply(knobs="knobs: more stages"), "is not 'name=value"),
        (reply(knobs="knobs: depth=3"), "declares no knob 'depth'"),
        (reply(knobs="knobs: stages=99"), "99 is not a legal value of knob 'stages'"),
        (reply(code='PK_KERNEL(k, knob("s", 2, range));\n'), "cannot be read"),
        (reply(code=SOURCE + "\0\n"), "NUL"),
    ],
)
def test_unusable_replies_say_why(text: str, why: str) -> None:
    with pytest.raises(UnusableReplyError, match=why):
        parse_reply(text)


def test_the_format_that_is_asked_for_is_the_one_that_is_read() -> None:
    answered = FORMAT.split("\n\n", 1)[1].replace("<the complete kernel.cu", SOURCE + "//")
    answered = answered.replace("knobs: <", "knobs: none <").replace("none <name=value", "none\n<")
    assert parse_reply(answered).candidate.source.startswith(SOURCE)
