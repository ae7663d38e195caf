"""Builds kernels for the emulator: sources are translated, compiled and linked with its engine."""

import hashlib
import os
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pk_runtime.build_cache import BuildCache
from pk_runtime.candidate import Candidate, resolved_knobs
from pk_runtime.emulator.translate import translate
from pk_runtime.execution import Command, Executor, Limits, LocalExecutor
from pk_runtime.toolchain import ToolchainError, gxx, search_path

HERE = Path(__file__).parent
HEADERS = HERE.parent / "include"
FIBERS = HERE.parent / "sim" / "fiber.cc"

BUILD_WALL_S = 300.0
BUILD_LIMITS = Limits(BUILD_WALL_S, memory_bytes=4 << 30)
_SEEN_BY_ALL = ("-std=c++20", "-g1", "-w", "-D__CUDACC__", "-I", "words", "-I", "include")
_FORCED = ("-include", "pk/emulated/words.h")
_ENGINE_HEADER = "emulator/engine/engine.h"
_ENGINE_FLAGS = (*_SEEN_BY_ALL, "-O2")
# The instrumentation calls the engine for every access; its own library is not linked.
_KERNEL_FLAGS = (*_SEEN_BY_ALL, "-O1", "-fsanitize=thread", "-no-pie", *_FORCED)


class EmulatorBuildError(Exception):
    """A kernel that g++ does not compile; the message is the compiler's."""


class EmulatorBuilder:
    """Builds into `cache`; `executor` runs the compiler on the kernel, which is not trusted.

    `headers` replaces texts of pk_runtime's headers by path below `include/` (`pk/sm90/ring.h`):
    so a header can be tried with a change.
    """

    def __init__(
        self,
        cache: Path,
        executor: Executor | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._cache = BuildCache(cache)
        self._executor: Executor = executor or LocalExecutor()
        self._headers = dict(headers or {})

    def program(self, candidate: Candidate) -> Path:
        """The emulator's executable of a pk candidate.

        Raises EmulatorBuildError for what the kernel's or the header's author can mend,
        TranslationError for a construct that is not known, ToolchainError without a compiler.
        """
        engine = self.engine()
        knobs = ";".join(f"{name}={value}" for name, value in resolved_knobs(candidate).items())
        files = {name: translate(text) for name, text in candidate.files.items()}
        headers = _headers(self._headers)
        tool = gxx()
        key = _key("kernel", tool.version, _KERNEL_FLAGS, knobs, files, headers, engine.parent.name)

        def build(folder: Path) -> None:
            with self._cache.workdir() as work:
                _write(work / "include", headers)
                _write(work, files)
                shutil.copytree(HERE / "include", work / "words")
                argv = (
                    *(str(tool.path), *_KERNEL_FLAGS, f'-DPK_KNOBS="{knobs}"'),
                    *("-x", "c++", candidate.main_file, "-x", "none"),
                    *("-Wl,--whole-archive", str(engine), "-Wl,--no-whole-archive"),
                    *("-o", "program"),
                )
                # The instrumentation's flag must not reach the linker: it would add its library.
                compiled = (*argv[: argv.index("-Wl,--whole-archive") - 2], "-c", "-o", "kernel.o")
                linked = (str(tool.path), "-no-pie", "kernel.o", *argv[-5:])
                for step in (compiled, linked):
                    self._run(step, work, (engine,))
                shutil.copyfile(work / "program", folder / "program")
                (folder / "program").chmod(0o755)

        return self._cache.get(key, build, BUILD_WALL_S) / "program"

    def engine(self) -> Path:
        """The engine as a static library; it knows the interface between launcher and kernel."""
        sources = sorted((HERE / "engine").iterdir())
        texts = {path.name: path.read_text(encoding="utf-8") for path in sources}
        headers = _headers({})
        tool = gxx()
        key = _key("engine", tool.version, _ENGINE_FLAGS, texts, headers, FIBERS.read_text())

        def build(folder: Path) -> None:
            with self._cache.workdir() as work:
                _write(work / "include", headers)
                shutil.copytree(HERE / "include", work / "words")
                shutil.copytree(FIBERS.parent, work / "sim")
                shutil.copytree(HERE / "engine", work / "emulator" / "engine")
                units = [Path("sim") / FIBERS.name]
                units += [Path("emulator/engine") / name for name in texts if name.endswith(".cc")]

                def compile_one(unit: Path) -> str:
                    result = f"{unit.stem}.o"
                    argv = (*flags, "-include", _ENGINE_HEADER, "-c", str(unit), "-o", result)
                    self._run(argv, work, ())
                    return result

                flags = (str(tool.path), *_ENGINE_FLAGS)
                # Reading headers is most of the work: once for all units.
                argv = (*flags, "-x", "c++-header", _ENGINE_HEADER, "-o", f"{_ENGINE_HEADER}.gch")
                self._run(argv, work, ())
                with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                    objects = list(pool.map(compile_one, units))
                archiver = shutil.which("ar")
                if archiver is None:
                    raise ToolchainError("there is no ar: install binutils")
                self._run((archiver, "rcsD", "engine.a", *objects), work, ())
                shutil.copyfile(work / "engine.a", folder / "engine.a")

        return self._cache.get(key, build, BUILD_WALL_S) / "engine.a"

    def _run(self, argv: tuple[str, ...], work: Path, reads: tuple[Path, ...]) -> None:
        tool = gxx()
        env = {"PATH": search_path(tool), "LC_ALL": "C", "TMPDIR": "."}
        command = Command(argv, work, (*reads, *tool.headers), env, BUILD_LIMITS)
        done = self._executor.run(command)
        if not done.ok:
            text = done.stderr.decode(errors="replace")
            raise EmulatorBuildError(text[:4000] or f"the compiler was stopped: {done.exceeded}")


def _headers(changed: Mapping[str, str]) -> dict[str, str]:
    """All headers, translated; `changed` takes the place of what lies in the tree."""
    paths = [path for path in sorted(HEADERS.rglob("*.h")) if "sim" not in path.parts]
    texts = {str(path.relative_to(HEADERS)): path.read_text(encoding="utf-8") for path in paths}
    if unknown := changed.keys() - texts.keys():
        raise KeyError(f"pk_runtime has no header {', '.join(sorted(unknown))}")
    return {name: translate(changed.get(name, text)) for name, text in texts.items()}


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _key(*parts: object) -> str:
    words = (HERE / "include").rglob("*.h")
    seen = [path.read_text(encoding="utf-8") for path in sorted(words)]
    return hashlib.sha256(repr((parts, seen)).encode()).hexdigest()
