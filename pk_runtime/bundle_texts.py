"""The two files of a bundle that are written for it: the Python module and the README."""

import keyword
import re
from collections.abc import Mapping
from typing import Any

_MODULE = '''"""{title}, a kernel made by pkforge for {target}.

    from kernel import {function}
    {call}

{explained}
"""

from pathlib import Path

from pk_runtime.torch_kernel import TorchKernel

SOURCES = {sources}

kernel = TorchKernel(Path(__file__).parent, SOURCES)


def {function}(**inputs):
    """Builds the kernel on first use, then calls it; see the module's description."""
    return kernel(**inputs)
'''

# How a kernel is called, by the back end of its target.
_EXPLAINED = {
    "sim": """Each argument is a list with one tensor per rank. The result is a list with one tensor
per rank, or a dictionary of such lists if there are several outputs. Needs pkforge's pk_runtime
and g++. On a sim: target this runs the simulator: real results, on a CPU, slowly, so keep the
tensors small.""",
    "cuda": """Every rank's process calls it with its own tensors on its GPU, after
torch.distributed.init_process_group (see torchrun) and torch.cuda.set_device. The result is this
rank's tensor, or a dictionary of them if there are several outputs. group=... names another process
group than all ranks. The first call with new shapes makes memory on all ranks together and builds
the kernel; later ones may be captured into a CUDA graph. Needs pkforge's pk_runtime and nvcc.""",
}
_COMPILERS = {"sim": "g++", "cuda": "the CUDA toolkit 13.0 (nvcc)"}

_README = """# {title} on {target}

A kernel found by pkforge. Verdict: **{status}**. {summary}

{timings}

Knobs: {knobs}

## Reproduce the verdict

    pkforge eval {bundle}

compiles the source, checks it against the problem's reference and times it again.

## Call it

Unpack the bundle, install pkforge and {compiler}, then

```python
from kernel import {function}
{call}
```

{explained}

## Files

- `source/`: the kernel's source, SHA-256 in `manifest.json`
- `kernel.py`: builds the source and calls it on tensors, refuses a changed source
- `manifest.json`: problem, target, knobs, verdict, timings, versions, hashes, lineage
"""


def kernel_module(manifest: Mapping[str, Any]) -> str:
    """The text of kernel.py; `manifest["hashes"]` holds those of the source files."""
    sources = "".join(f'    "{name}": "{sha}",\n' for name, sha in manifest["hashes"].items())
    return _MODULE.format(
        title=_plain(manifest["problem"]),
        target=_plain(manifest["target"]),
        function=function_name(manifest["problem"]),
        call=_call(manifest),
        explained=_EXPLAINED[_backend(manifest)],
        sources="{\n" + sources + "}",
    )


def readme(manifest: Mapping[str, Any]) -> str:
    """The text of README.md."""
    verdict = manifest["verdict"]
    evidence = verdict.get("evidence")
    summary = evidence.get("summary", "") if isinstance(evidence, Mapping) else ""
    knobs = ", ".join(f"`{name}={value}`" for name, value in sorted(manifest["knobs"].items()))
    return _README.format(
        title=_plain(manifest["problem"]),
        target=_plain(manifest["target"]),
        status=_plain(verdict.get("status", "not judged")),
        summary=_plain(summary),
        timings=_timings(manifest["timings"]),
        knobs=knobs or "none",
        bundle="bundle.zip",
        function=function_name(manifest["problem"]),
        call=_call(manifest),
        explained=_EXPLAINED[_backend(manifest)],
        compiler=_COMPILERS[_backend(manifest)],
    )


def function_name(problem: str) -> str:
    """A Python name made of a problem's slug."""
    name = re.sub(r"\W", "_", problem, flags=re.ASCII)
    return f"kernel_{name}" if not name.isidentifier() or keyword.iskeyword(name) else name


def _backend(manifest: Mapping[str, Any]) -> str:
    return "cuda" if str(manifest["target"]).startswith("cuda:") else "sim"


def _call(manifest: Mapping[str, Any]) -> str:
    interface = manifest.get("interface")
    names = [tensor["name"] for tensor in interface["inputs"]] if interface else ["a", "b"]
    value = "{0}={0}" if _backend(manifest) == "cuda" else "{0}=[...]"
    arguments = ", ".join(value.format(name) for name in names)
    return f"outputs = {function_name(manifest['problem'])}({arguments})"


def _timings(timings: list[Mapping[str, Any]]) -> str:
    if not timings:
        return "It was not timed."
    rows = [
        "| shape | time | kind | PyTorch + NCCL | speedup | of roofline | bound by |",
        "|---|---|---|---|---|---|---|",
    ]
    for timing in timings:
        rows.append(
            f"| {_plain(timing.get('shape'))} | {_number(timing.get('candidate_us'))} us "
            f"| {_plain(timing['kind'])} | {_number(timing.get('baseline_us'))} us "
            f"| {_number(timing.get('speedup'), 2)}x "
            f"| {_number(timing.get('roofline_fraction'), 2)} "
            f"| {_plain(timing.get('bottleneck', ''))} |"
        )
    return "\n".join(rows)


def _number(value: object, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "?"


def _plain(value: object) -> str:
    """One line of text that cannot end a docstring, a table cell or a paragraph early."""
    text = " ".join(str(value).split())
    return re.sub(r'[\\"`|<>{}]', "'", text)[:2000]
