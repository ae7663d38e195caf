"""The compiler driver: one candidate, two machines.

`Compiler.simulator` builds a pk kernel with g++ against the simulator's engine, `Compiler.cubin`
builds a pk or cuda kernel with nvcc for sm_90a. Results are cached by the content of everything
they depend on. The candidate is compiled by the given executor, because the compiler reads what
the candidate tells it to include; pk_runtime's own engine is trusted and built locally.
"""

import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pk_runtime.build_cache import BuildCache
from pk_runtime.candidate import Candidate, CandidateError, resolved_knobs, validate
from pk_runtime.diagnostics import Diagnostic, SourceTree, foreign_headers, parse, render
from pk_runtime.execution import Command, Completed, Executor, Limits, LocalExecutor
from pk_runtime.toolchain import Tool, ToolchainError, gxx, nvcc, search_path

__all__ = ["BuildError", "Compiler", "Diagnostic", "ToolchainError", "UnsupportedLanguage"]

INCLUDE = Path(__file__).parent / "include"
ENGINE_SOURCES = Path(__file__).parent / "sim"
# Beside a program or library: the candidate's part of it, before it was linked.
OBJECT = "kernel.o"

COMPILE_WALL_S = 60.0
COMPILE_MEMORY_BYTES = 4 << 30
COMPILE_FILE_BYTES = 256 << 20
ENGINE_WALL_S = 300.0
COMPILE_LIMITS = Limits(COMPILE_WALL_S, COMPILE_MEMORY_BYTES, file_bytes=COMPILE_FILE_BYTES)

# -H lists the headers that are opened: a log that quotes a foreign file is thrown away.
GCC_MESSAGES = ("-fno-diagnostics-show-caret", "-fdiagnostics-color=never", "-fmessage-length=0")
SIMULATOR_FLAGS = (
    "-std=c++20",
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-Wall",
    "-Werror=return-type",
    "-H",
    *GCC_MESSAGES,
    # A kernel has no pointers: out of its own memory it could only index, and that ends the run.
    "-fsanitize=bounds-strict",
    "-fsanitize-undefined-trap-on-error",
    "-Werror=vla",
)
# The whole engine is linked, and first: a candidate's own main() must clash with it, and of two
# copies of a template's function the linker takes the engine's.
WHOLE, END_WHOLE = ("-Wl,--whole-archive",), ("-Wl,--no-whole-archive",)
ENGINE_FLAGS = ("-std=c++20", "-O2", "-g0", *GCC_MESSAGES)
GPU_FLAGS = ("-std=c++20", "-O3", "-gencode", "arch=compute_90a,code=sm_90a", "-Xcompiler", "-H")
CUBIN_FLAGS = (*GPU_FLAGS, "-cubin", "-Xptxas", "-v")
TRACE_FLAGS = ("-DPK_TRACE",)
LIBRARY_FLAGS = (*GPU_FLAGS, "-Xcompiler", "-fPIC", "-c")
LINK_FLAGS = ("-gencode", "arch=compute_90a,code=sm_90a", "-shared")


class BuildError(Exception):
    """A candidate that does not compile: what the compiler says of it, as records and as text."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        self.diagnostics = diagnostics
        self.log = render(diagnostics)
        super().__init__(str(diagnostics[0]) if diagnostics else "the build failed")


class UnsupportedLanguage(BuildError):  # noqa: N818  a BuildError already says it
    """A candidate whose language cannot be built for the target asked for."""


class Compiler:
    """Builds candidates into `cache`; `executor` runs the compiler on what is not trusted.

    Methods raise BuildError for what the candidate's author can mend and ToolchainError for what
    only this machine's owner can.
    """

    def __init__(
        self, cache: Path, executor: Executor | None = None, limits: Limits = COMPILE_LIMITS
    ) -> None:
        self.cache = BuildCache(cache)
        self.executor: Executor = executor or LocalExecutor()
        self.limits = limits

    def simulator(self, candidate: Candidate) -> Path:
        """The simulator's executable of a pk candidate."""
        if candidate.language != "pk":
            raise _unsupported(candidate, "sim: targets run pk kernels only", "a cuda: target")
        _accept(candidate)
        tool, engine = gxx(), self.engine()
        key = _key("simulator", candidate, tool, SIMULATOR_FLAGS, INCLUDE, ENGINE_SOURCES)
        compiled = (
            *(str(tool.path), *SIMULATOR_FLAGS, f"-I{INCLUDE}", _knob_macro(candidate)),
            *("-x", "c++", "-c", candidate.main_file, "-o", OBJECT),
        )
        linked = (str(tool.path), *WHOLE, str(engine), *END_WHOLE, OBJECT, "-o", "program")

        def build(folder: Path) -> None:
            steps = (compiled, linked)
            self._compile(candidate, steps, (engine, INCLUDE), (tool,), "program", folder)
            (folder / "program").chmod(0o755)

        return self.cache.get(key, build, self.limits.wall_s) / "program"

    def cubin(self, candidate: Candidate) -> Path:
        """The sm_90a machine code of a pk or cuda candidate; `kernel.log` lies beside it."""
        return self._gpu(candidate, CUBIN_FLAGS, "kernel.cubin")

    def library(self, candidate: Candidate, *, trace: bool = False) -> Path:
        """A shared library with the sm_90a kernel and the functions that launch it.

        With `trace` the kernel records a timeline of every launch (see gpu/timeline.py), which
        makes it somewhat slower.
        """
        flags = (*LIBRARY_FLAGS, *TRACE_FLAGS) if trace else LIBRARY_FLAGS
        return self._gpu(candidate, flags, "kernel.so", LINK_FLAGS)

    def _gpu(
        self, candidate: Candidate, flags: tuple[str, ...], result: str, link: tuple[str, ...] = ()
    ) -> Path:
        if candidate.language == "triton":
            raise _unsupported(candidate, "Triton compiles its kernels itself", "pk or cuda source")
        _accept(candidate)
        host, tool = gxx(), nvcc()
        key = _key(result, candidate, tool, (*flags, *link, host.version), INCLUDE)
        compiler = (str(tool.path), "-ccbin", str(host.path))
        compiled = (
            *(*compiler, *flags, f"-I{INCLUDE}", _knob_macro(candidate)),
            *(candidate.main_file, "-o", OBJECT if link else result),
        )
        steps = (compiled, (*compiler, *link, OBJECT, "-o", result)) if link else (compiled,)

        def build(folder: Path) -> None:
            reads = (INCLUDE, tool.root)
            log = self._compile(candidate, steps, reads, (tool, host), result, folder)
            ptxas = [line for line in log.splitlines() if line.startswith(("ptxas info", "    "))]
            (folder / "kernel.log").write_text("\n".join(ptxas), encoding="utf-8")

        return self.cache.get(key, build, self.limits.wall_s) / result

    def engine(self) -> Path:
        """The simulator's engine as a static library, built on first use."""
        tool = gxx()
        key = _hash("engine", tool.version, ENGINE_FLAGS, _tree_digest(INCLUDE, ENGINE_SOURCES))
        return self.cache.get(key, lambda folder: _build_engine(tool, folder), ENGINE_WALL_S) / (
            "engine.a"
        )

    def _compile(
        self,
        candidate: Candidate,
        steps: tuple[tuple[str, ...], ...],
        read_only: tuple[Path, ...],
        tools: tuple[Tool, ...],
        result: str,
        folder: Path,
    ) -> str:
        """Runs the steps in a folder of its own, up to the first that fails; returns the log.

        Copies `result` to `folder`, and the object that more than one step has in between.
        """
        headers = (INCLUDE, *(path for tool in tools for path in tool.headers))
        tree = SourceTree(dict(candidate.files), candidate.main_file, headers)
        with self.cache.workdir() as workdir:
            _write_files(workdir, candidate.files)
            workdir.chmod(0o777)  # an isolating executor may run the compiler as another user
            env = {"PATH": search_path(*tools), "LC_ALL": "C", "TMPDIR": "."}
            here = (
                f"-ffile-prefix-map={workdir}=."  # or line tables would differ from build to build
            )
            first = (*steps[0], here) if Path(steps[0][0]).name.startswith("g++") else steps[0]
            # One start of a sandbox, which takes longer than a link.
            argv = ("/bin/sh", "-c", " && ".join(map(shlex.join, (first, *steps[1:]))))
            done = self.executor.run(Command(argv, workdir, read_only, env, self.limits))
            log = done.stderr.decode(errors="replace")
            _check(done, log, tree, self.limits)
            for name in (OBJECT, result) if len(steps) > 1 else (result,):
                output = workdir / name
                if output.is_symlink() or not output.is_file():
                    program = Path(first[0]).name
                    raise ToolchainError(f"{program} reported success but wrote no {name}")
                shutil.copyfile(output, folder / name)
        return log


def _check(done: Completed, log: str, tree: SourceTree, limits: Limits) -> None:
    """Raises BuildError unless a compiler run is good; never quotes a file of the machine."""
    if done.exceeded is None and (foreign := foreign_headers(log, tree)):
        raise BuildError(tuple(_foreign(name, tree) for name in dict.fromkeys(foreign)))
    if done.ok:
        return
    if message := _exhausted(done, log, limits):
        raise BuildError((Diagnostic(tree.main, 0, 0, "error", message),))
    if diagnostics := parse(log, tree):
        raise BuildError(diagnostics)
    ended = f"signal {done.signal}" if done.signal else f"exit code {done.exit_code}"
    raise ToolchainError(
        f"the compiler failed ({ended}) without an error message it can be read by"
    )


def _exhausted(done: Completed, log: str, limits: Limits) -> str:
    """What to tell the author when the compiler ran out of something, else nothing."""
    if done.exceeded == "wall":
        return (
            f"compiling took more than {limits.wall_s:g} s and was stopped: reduce template "
            "recursion, constexpr loops or unrolling"
        )
    killed = "Killed signal terminated" in log or "(program cc1plus)" in log
    if done.exceeded == "memory" or killed or "out of memory allocating" in log:
        return (
            f"compiling took more than {limits.memory_bytes / (1 << 30):.3g} GiB of memory and was "
            "stopped: reduce template recursion, large constant arrays or unrolling"
        )
    if done.exceeded == "output":
        return "the compiler printed more than it may: reduce #warning and template recursion"
    return ""


def _foreign(name: str, tree: SourceTree) -> Diagnostic:
    leaf = Path(name).name
    lines = tree.files[tree.main].splitlines()
    line = next((i for i, text in enumerate(lines, 1) if "#" in text and leaf in text), 0)
    message = (
        "a candidate may include only <pk/...>, standard headers and its own files; "
        f"{leaf!r} is none of them"
    )
    return Diagnostic(tree.main, line, 0, "error", message)


def _build_engine(tool: Tool, folder: Path) -> None:
    sources = sorted(ENGINE_SOURCES.glob("*.cc"))
    if not sources:
        raise ToolchainError(f"there are no engine sources in {ENGINE_SOURCES}: reinstall pkforge")
    archiver = shutil.which("ar")
    if archiver is None:
        raise ToolchainError("there is no ar: install binutils, e.g. `apt-get install binutils`")
    env = {"PATH": search_path(tool), "LC_ALL": "C", "TMPDIR": "."}
    limits = Limits(ENGINE_WALL_S, COMPILE_MEMORY_BYTES)

    def run(*argv: str) -> None:
        done = LocalExecutor().run(Command(argv, folder, (), env, limits))
        if not done.ok:
            text = done.stderr.decode(errors="replace")[:4000]
            raise ToolchainError(f"the simulator's engine does not build: {argv[-1]}: {text}")

    # All of them include it, and reading it takes longer than compiling most of them.
    header = ENGINE_SOURCES / "world.h"
    compile_to = (str(tool.path), *ENGINE_FLAGS, f"-I{INCLUDE}", "-o")
    run(*compile_to, f"{header.name}.gch", "-x", "c++-header", str(header))

    def compile_one(source: Path) -> str:
        run(*compile_to, f"{source.stem}.o", "-include", header.name, "-c", str(source))
        return f"{source.stem}.o"

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_one, sources))
    run(archiver, "rcsD", "engine.a", *objects)
    for name in (*objects, f"{header.name}.gch"):
        (folder / name).unlink()


def _unsupported(candidate: Candidate, why: str, instead: str) -> UnsupportedLanguage:
    message = f"a {candidate.language!r} candidate cannot be built here: {why}. Use {instead}"
    return UnsupportedLanguage((Diagnostic(candidate.main_file, 0, 0, "error", message),))


def _accept(candidate: Candidate) -> None:
    try:
        validate(candidate)
    except CandidateError as error:
        file, _, line = error.where.partition(":")
        place = (file, int(line)) if line.isdecimal() else (candidate.main_file, 0)
        record = Diagnostic(*place, 0, "error", f"{error.what}. {error.fix}")
        raise BuildError((record,)) from error


def _knob_macro(candidate: Candidate) -> str:
    knobs = sorted(resolved_knobs(candidate).items())
    return '-DPK_KNOBS="' + ";".join(f"{name}={value}" for name, value in knobs) + '"'


def _key(
    kind: str, candidate: Candidate, tool: Tool, flags: tuple[str, ...], *folders: Path
) -> str:
    content = Candidate(candidate.language, candidate.files, resolved_knobs(candidate)).digest()
    return _hash(kind, content, tool.version, flags, _tree_digest(*folders))


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tree_digest(*folders: Path) -> str:
    """SHA-256 over names and bytes of all files below some folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                name = str(path.relative_to(folder.parent))
                digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
