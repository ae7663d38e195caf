"""Labels: what is honest and worth knowing of a kernel, told from its text. A label bans nothing.

A user may want to know that a kernel keeps state between launches, or sums in a narrow type, before
it goes into a program of theirs; neither makes a right result wrong.
"""

from collections.abc import Mapping
from typing import Literal, get_args

from pk_runtime.candidate import Candidate
from sandbox.rules.tokens import tokens

Label = Literal["library_gemm", "cuda_graph", "persistent_state", "lossy_arithmetic"]
LABELS: tuple[Label, ...] = get_args(Label)

MEANING: Mapping[Label, str] = {
    "library_gemm": "a library multiplies; the kernel does the rest",
    "cuda_graph": "it captures its launches into a CUDA graph of its own",
    "persistent_state": "it keeps data of its own between launches",
    "lossy_arithmetic": "it sums or multiplies in a type narrower than fp32",
}
_LARGE: frozenset[str] = frozenset(["cublasGemmEx", "cublasLtMatmul", "matmul", "mm", "addmm"])
_WORDS: Mapping[str, Mapping[Label, frozenset[str]]] = {
    "pk": {"lossy_arithmetic": frozenset(["store_add_async"])},
    "cuda": {
        "library_gemm": _LARGE,
        "cuda_graph": frozenset(["cudaStreamBeginCapture", "cudaGraphLaunch"]),
        "persistent_state": frozenset(["scratch", "signals"]),
        "lossy_arithmetic": frozenset(
            ["__hadd", "__hadd2", "__hfma2", "__hmul2", "__nv_fp8_e4m3", "__nv_fp8_e5m2",
             "__nv_fp8x4_e4m3"]
        ),
    },
    "triton": {
        "library_gemm": _LARGE,
        "cuda_graph": frozenset(["CUDAGraph"]),
        "persistent_state": frozenset(["workspace", "cache", "lru_cache"]),
        "lossy_arithmetic": frozenset(["float8e4nv", "float8e5", "float8_e4m3fn", "float8_e5m2"]),
    },
}  # fmt: skip


def labels(candidate: Candidate) -> tuple[Label, ...]:
    """The labels that a candidate's text earns, in the order of LABELS."""
    used = {
        token.text
        for source in candidate.files.values()
        for token in tokens(source)
        if token.kind == "name"
    }
    by_label = _WORDS[candidate.language]
    return tuple(label for label in LABELS if used & by_label.get(label, frozenset()))
