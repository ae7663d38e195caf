"""Candidates: what is accepted, what a refusal says, and which knobs a source declares."""

import contextlib
import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pk_runtime.candidate import (
    MAX_SOURCE_BYTES,
    Candidate,
    CandidateError,
    Knob,
    declared_knobs,
    resolved_knobs,
    validate,
)

SOURCE = """// knob("not_this", 1, {1}) is a comment
#include <pk/pk.h>
/* knob("nor_this", 1, {1}) */
constexpr auto text = R"(// knob("nor_that", 1, {1}))";
constexpr int stages = pk::knob("stages", 4, {2, 3, 4});  // three depths
struct kernel { static constexpr int comm_sms = knob(
    "comm_sms",
    8,
    {0, 4, 8,},
  ); };
constexpr int shift = knob("shift", -1, {-1, 0x10, 1'000});
"""
SOURCE = SOURCE.replace("{0, 4, 8,},\n  )", "{0, 4, 8,}\n  )")


def pk(source: str = SOURCE, **knobs: int) -> Candidate:
    return Candidate("pk", {"kernel.cu": source}, knobs)


def refusal(candidate: Candidate) -> CandidateError:
    with pytest.raises(CandidateError) as caught:
        validate(candidate)
    assert caught.value.what
    assert caught.value.where
    assert caught.value.fix
    return caught.value


def test_knobs_are_read_from_the_source_in_order() -> None:
    assert declared_knobs(SOURCE) == (
        Knob("stages", 4, (2, 3, 4)),
        Knob("comm_sms", 8, (0, 4, 8)),
        Knob("shift", -1, (-1, 16, 1000)),
    )


def test_the_same_declaration_twice_is_one_knob() -> None:
    assert len(declared_knobs('knob("a", 1, {1}); knob("a", 1, {1});')) == 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('knob("a", 1, {1});\n\nknob("a", 2, {2});', "kernel.cu:3: knob 'a' is declared twice"),
        ('\nknob("a", N, {1})', "kernel.cu:2: this knob declaration cannot be read"),
        ('knob("a", 1)', "kernel.cu:1: this knob declaration cannot be read"),
        ('knob("a", 1, {})', "cannot be read"),
        ('knob("a", 1, {1, x})', "cannot be read"),
        ('knob("a", 089, {1})', "cannot be read"),
        ('knob("a", 5, {1, 2})', "the default 5 is not a legal value"),
        ('knob("a", 1, {1, 1})', "listed twice"),
        ('knob("A b", 1, {1})', "illegal name"),
        ('knob("a", 4294967296, {4294967296})', "32 bits"),
        ("".join(f'knob("k{i}", 1, {{1}});' for i in range(65)), "65 knobs"),
    ],
)
def test_a_wrong_declaration_names_its_line(source: str, says: str) -> None:
    with pytest.raises(CandidateError) as caught:
        declared_knobs(source)
    assert says in str(caught.value)


def test_other_calls_that_end_in_knob_are_not_knobs() -> None:
    assert declared_knobs("my_knob(3); state.knob(4); door->knob(5);") == ()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet='knob("a", 1){}/*\\\'R\n;-x0', max_size=60))
def test_any_text_is_read_or_refused(source: str) -> None:
    try:
        knobs = declared_knobs(source)
    except CandidateError:
        return
    assert all(knob.default in knob.values for knob in knobs)


@pytest.mark.parametrize("unit", ['R"(', 'knob("a",1,{1});', '"\\', "'", "/*", 'knob("a", ', "\\"])
def test_hostile_text_is_read_in_linear_time(unit: str) -> None:
    # Quadratic reading of a megabyte would run into the test's time limit.
    source = unit * (MAX_SOURCE_BYTES // len(unit))
    with contextlib.suppress(CandidateError):
        declared_knobs(source)


def test_resolved_knobs_have_chosen_and_default_values() -> None:
    assert resolved_knobs(pk(stages=2)) == {"stages": 2, "comm_sms": 8, "shift": -1}
    assert resolved_knobs(Candidate("triton", {"kernel.py": "x"}, {"b": 3})) == {"b": 3}


def test_a_good_candidate_is_accepted() -> None:
    validate(pk(stages=3, comm_sms=0))
    validate(Candidate("triton", {"kernel.py": "import torch", "helper.py": ""}, {"anything": 7}))
    validate(Candidate("cuda", {"kernel.cu": "int x;", "lib/tools.cuh": "int y;"}))


@pytest.mark.parametrize(
    ("candidate", "says"),
    [
        (Candidate("pk", {}), "no file 'kernel.cu'"),
        (Candidate("pk", {"a.cu": "x"}), "no file 'kernel.cu'"),
        (Candidate("pk", {"kernel.cu": "x", "b.h": "y"}), "a pk candidate is one file"),
        (Candidate("cuda", {"kernel.cu": "x", "../b.h": "y"}), "illegal file name"),
        (Candidate("cuda", {"kernel.cu": "x", "/etc/b": "y"}), "illegal file name"),
        (Candidate("cuda", {"kernel.cu": "x", "-o": "y"}), "illegal file name"),
        (Candidate("cuda", {"kernel.cu": "x", ".hidden": "y"}), "illegal file name"),
        (Candidate("cuda", {"kernel.cu": "x"} | {f"{i}.h": "" for i in range(40)}), "41 files"),
        (pk(" \n"), "the file is empty"),
        (pk("a\n\0"), "kernel.cu:2: there is a NUL character"),
        (pk("a\n\ud800"), "kernel.cu:2: there is text that is not Unicode"),
        (pk("x" * (MAX_SOURCE_BYTES + 1)), "1048577 bytes"),
        (pk(tiles=3), "the source declares no knob 'tiles'"),
        (pk(stages=5), "5 is not a legal value of knob 'stages'"),
        (Candidate("rust", {"kernel.cu": "x"}), "language must be one of"),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_says_what_is_wrong(candidate: Candidate, says: str) -> None:
    assert says in str(refusal(candidate))


def test_a_refused_knob_lists_the_legal_ones() -> None:
    assert "stages, comm_sms, shift" in refusal(pk(tiles=3)).fix
    assert "2, 3, 4" in refusal(pk(stages=5)).fix


def test_the_digest_depends_on_everything_and_on_nothing_else() -> None:
    first = Candidate("cuda", {"kernel.cu": "x", "a.h": "y"}, {"p": 1, "q": 2})
    again = Candidate("cuda", {"a.h": "y", "kernel.cu": "x"}, {"q": 2, "p": 1})
    assert first.digest() == again.digest()
    assert hash(first) == hash(again)
    assert first == again
    others = [
        dataclasses.replace(first, language="pk"),
        dataclasses.replace(first, files={"kernel.cu": "x", "a.h": "z"}),
        dataclasses.replace(first, knobs={"p": 1, "q": 3}),
    ]
    assert len({first.digest(), *(other.digest() for other in others)}) == 4


def test_a_candidate_does_not_change_with_the_dictionaries_it_was_made_of() -> None:
    files, knobs = {"kernel.cu": SOURCE}, {"stages": 2}
    candidate = Candidate("pk", files, knobs)
    files["kernel.cu"], knobs["stages"] = "", 3
    assert candidate == pk(stages=2)


def test_json_round_trip() -> None:
    assert Candidate.from_json(pk(stages=2).to_json()) == pk(stages=2)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([], "a candidate is a JSON object"),
        ({"language": "pk", "files": {}, "more": 1}, "unknown fields: more"),
        ({"language": "c", "files": {}}, "language must be one of"),
        ({"language": "pk"}, "files must map"),
        ({"language": "pk", "files": {"kernel.cu": 3}}, "files must map"),
        ({"language": "pk", "files": {}, "knobs": {"a": True}}, "knobs must map"),
        ({"language": "pk", "files": {}, "knobs": None}, "knobs must map"),
    ],
)
def test_malformed_json_is_refused(data: object, says: str) -> None:
    with pytest.raises(CandidateError, match=says):
        Candidate.from_json(data)
