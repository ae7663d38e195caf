"""pk_runtime's own GPU headers: clean as they are, flagged where one thing is taken out of them."""

from pathlib import Path

import pytest

from benchmarks.mutation.runtime import candidate_of, emulate, examine, false_alarms
from benchmarks.mutation.runtime_mutants import RUNTIME_MUTANTS, source_of
from pk_runtime.candidate import Candidate
from pk_runtime.emulator import EmulatorBuilder
from pk_runtime.emulator.builder import HEADERS
from pk_runtime.kernels import shipped_names

pytestmark = pytest.mark.timeout(300)  # the first test builds the engine

QUICK = ("allreduce_ll", "allgather", "gemm_reducescatter")


def program_of(builder: EmulatorBuilder, kernel: str) -> Path:
    return builder.program(Candidate("pk", {"kernel.cu": source_of(kernel)}))


@pytest.mark.parametrize("kernel", QUICK)
def test_a_shipped_kernel_is_clean_and_right(
    builder: EmulatorBuilder, tmp_path: Path, kernel: str
) -> None:
    for seed in (0, 3):
        run, right = emulate(kernel, program_of(builder, kernel), tmp_path, blocks=2, seed=seed)
        assert run.outcome == "finished", str(run)
        assert right


@pytest.mark.slow
@pytest.mark.parametrize("kernel", sorted(set(shipped_names()) - set(QUICK)))
def test_every_shipped_kernel_is_clean_and_right(
    builder: EmulatorBuilder, tmp_path: Path, kernel: str
) -> None:
    run, right = emulate(kernel, program_of(builder, kernel), tmp_path, blocks=1, seed=2)
    assert run.outcome == "finished", str(run)
    assert right


def test_every_edit_has_its_place_in_the_headers() -> None:
    for mutant in RUNTIME_MUTANTS:
        original = (HEADERS / mutant.header).read_text()
        assert mutant.header_text(original) != original
        candidate_of(mutant)
    hazards = {m.hazard for m in RUNTIME_MUTANTS}
    assert hazards >= {f"H{i}" for i in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18)}


@pytest.mark.parametrize(
    "what",
    [
        "barrier() without its proxy fence",
        "waits poll with plain loads",
        "the check of slots is off by one",
        "a block ends while its store reads shared memory",
    ],
)
def test_an_edit_is_flagged_at_its_place(cache: Path, tmp_path: Path, what: str) -> None:
    mutant = next(m for m in RUNTIME_MUTANTS if m.what == what)
    result = examine(mutant, range(3), tmp_path, cache)
    assert result.caught, what
    assert result.placed, what


def test_the_unchanged_headers_are_not_flagged_with_the_same_kernels(
    cache: Path, tmp_path: Path
) -> None:
    chosen = [m for m in RUNTIME_MUTANTS if m.kernel in ("barriers", "reduce") and not m.dims]
    assert false_alarms(range(3), tmp_path, chosen, cache) == []


def test_additions_of_two_gpus_to_one_address_are_flagged(
    builder: EmulatorBuilder, tmp_path: Path
) -> None:
    run, _ = emulate("add", program_of(builder, "add"), tmp_path)
    found = next(f for f in run.findings if f.kind == "reduce_scope")
    assert found.first.rank != found.second.rank
    assert "atomic at gpu scope only" in found.missing


def test_a_header_that_is_not_there_is_refused(cache: Path) -> None:
    with pytest.raises(KeyError, match=r"pk/sm90/none\.h"):
        EmulatorBuilder(cache, headers={"pk/sm90/none.h": ""}).program(
            Candidate("pk", {"kernel.cu": source_of("allgather")})
        )
