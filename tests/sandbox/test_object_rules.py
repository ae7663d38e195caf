"""What a compiled kernel may refer to and define, on objects of the real compiler."""

import struct
from pathlib import Path

import pytest

from benchmarks.judge_mutation.objects import SAMPLES, Sample, built
from pk_runtime.candidate import Candidate
from pk_runtime.compiler import OBJECT, Compiler
from pk_runtime.kernels import shipped_kernel
from sandbox.rules.elf import ElfError, read_object
from sandbox.rules.objects import refusals
from sandbox.stages import StageFailed
from sandbox.stages.build import build


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.what)
def test_what_an_object_may_not_have_is_named(sample: Sample) -> None:
    with built(sample) as path:
        found = {name for name, _ in refusals(path, gpu=sample.gpu)}
    assert found == set(sample.refused)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    """The build cache of all tests that compile kernels."""
    return Compiler(Path(__file__).parents[2] / ".pkforge" / "test-cache")


CALL = "    auto pipe = s.pipe.producer(self);\n"
BEFORE = "using namespace pk;\n"


def alltoall(before: str = "", inside: str = "") -> Candidate:
    """A shipped kernel with some text before its own, and at the start of its loader."""
    kernel = shipped_kernel("alltoall")
    assert kernel.source.count(CALL) == kernel.source.count(BEFORE) == 1
    source = kernel.source.replace(BEFORE, BEFORE + before).replace(CALL, CALL + inside)
    return Candidate("pk", {"kernel.cu": source})


def test_the_build_stage_refuses_a_hidden_call(compiler: Compiler) -> None:
    """The rules on the text come earlier; here they are as if they had missed it."""
    hidden = 'long quiet(int, const void*, unsigned long) asm("write");\n'
    with pytest.raises(StageFailed) as caught:
        build(compiler, alltoall(hidden, "quiet(1, nullptr, 0);\n"))
    failed = caught.value
    assert (failed.stage, failed.status) == ("build", "rejected")
    (violation,) = failed.evidence["violations"]
    assert violation["token"] == "write"
    assert violation["line"] == 1 + alltoall().source.partition(BEFORE)[0].count("\n") + 1
    assert "'write'" in failed.evidence["summary"]


def test_the_build_stage_accepts_the_same_call_of_an_own_function(compiler: Compiler) -> None:
    own = "namespace mine { long write(int n) { return n < 2 ? n : write(n - 2) * 3; } }\n"
    program = build(compiler, alltoall(own, "if (mine::write(self.rank()) > 9) return;\n"))
    assert refusals(program.with_name(OBJECT)) == ()


# --- objects that no compiler made


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with built(SAMPLES[-1]) as path:
        return path.read_bytes()


def reading(data: bytes, folder: Path) -> tuple[tuple[str, str], ...]:
    path = folder / "kernel.o"
    path.write_bytes(data)
    return refusals(path)


def test_every_truncation_is_refused_and_the_whole_is_read(good: bytes, tmp_path: Path) -> None:
    assert reading(good, tmp_path) == ()
    for length in range(0, len(good) - 1, 37):
        assert reading(good[:length], tmp_path)


def test_no_change_of_a_byte_breaks_the_reader(good: bytes, tmp_path: Path) -> None:
    """Whatever the tables then say, the answer is a list of names."""
    table = struct.unpack_from("<Q", good, 40)[0]
    places = [*range(64), *range(table, len(good))]
    for place in places:
        for value in (0, 0x7F, 0xFF):
            reading(good[:place] + bytes([value]) + good[place + 1 :], tmp_path)


@pytest.mark.parametrize(
    ("place", "form", "value", "words"),
    [
        (0, "<4s", b"\x7fELG", "not an object file"),
        (16, "<H", 3, "not an object file"),
        (18, "<H", 40, "not an object file"),
        (40, "<Q", 1 << 62, "outside"),
        (58, "<H", 63, "another size"),
        (62, "<H", 999, "not there"),
    ],
)
def test_a_header_that_lies_is_named(
    good: bytes, tmp_path: Path, place: int, form: str, value: object, words: str
) -> None:
    changed = bytearray(good)
    struct.pack_into(form, changed, place, value)
    ((name, why),) = reading(bytes(changed), tmp_path)
    assert name == "kernel.o"
    assert words in why
    with pytest.raises(ElfError, match=words):
        read_object(tmp_path / "kernel.o")


def test_tables_are_bounded(good: bytes, tmp_path: Path) -> None:
    """A file with a hole of gigabytes is not read into memory."""
    changed = bytearray(good)
    struct.pack_into("<H", changed, 60, 0)  # then the first entry holds the number of sections
    table = struct.unpack_from("<Q", good, 40)[0]
    struct.pack_into("<Q", changed, table + 32, 1 << 27)
    path = tmp_path / "kernel.o"
    path.write_bytes(changed)
    with path.open("r+b") as stream:
        stream.truncate(16 << 30)
    ((_, why),) = refusals(path)
    assert "at most" in why
