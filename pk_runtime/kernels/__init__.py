"""The kernels the project ships: where the tuner starts, and examples to read."""

from pathlib import Path

from pk_runtime.candidate import MAIN_FILE, Candidate

_FOLDER = Path(__file__).parent
_FILES: dict[str, tuple[str, ...]] = {
    "allreduce": ("allreduce_push", "allreduce_two_shot", "allreduce_one_shot", "allreduce_ll"),
    "allgather": ("allgather", "allgather_direct", "allgather_ll"),
    "alltoall": ("alltoall", "alltoall_direct", "alltoall_ll"),
    "allgather_last_dim": ("allgather_last_dim",),
    "broadcast": ("broadcast", "broadcast_ll"),
    "gather": ("gather",),
    "gemm_allgather": ("gemm_allscatter",),
    "gemm_allreduce": ("gemm_allreduce", "gemm_allreduce_inline"),
    "gemm_reducescatter": ("gemm_reducescatter",),
    "reduce": ("reduce_to_root", "reduce_ll"),
    "reducescatter": ("reducescatter", "reducescatter_pull", "reducescatter_ll"),
    "reducescatter_last_dim": ("reducescatter_last_dim",),
    "scatter": ("scatter",),
    "sp_ag_gemm_m_sharded": ("allgather_gemm",),
    "ulysses_gather_heads_scatter_seq": ("alltoall_sequence",),
    "ulysses_gather_seq_scatter_heads": ("alltoall_heads",),
}


def shipped(problem_slug: str) -> tuple[Candidate, ...]:
    """The shipped kernels of a problem, with default knobs; none for a problem that has none."""
    return tuple(shipped_kernel(name) for name in _FILES.get(problem_slug, ()))


def shipped_names() -> tuple[str, ...]:
    """Names of all shipped kernels, each the stem of its file."""
    return tuple(sorted(name for names in _FILES.values() for name in names))


def shipped_problems() -> tuple[str, ...]:
    """Slugs of the problems that have a shipped kernel."""
    return tuple(sorted(_FILES))


def shipped_kernel(name: str) -> Candidate:
    """A shipped kernel by its name, with default knobs; KeyError with the known names."""
    if name not in shipped_names():
        raise KeyError(f"no shipped kernel {name!r}; known: {', '.join(shipped_names())}")
    text = (_FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    return Candidate("pk", {MAIN_FILE["pk"]: text})
