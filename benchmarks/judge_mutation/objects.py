"""Small C++ files whose objects have, or do not have, what a kernel's object may not.

None includes a header, so that each compiles at once; `build` makes the object.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pk_runtime.execution import Command, Limits, LocalExecutor
from pk_runtime.toolchain import gxx, search_path


@dataclass(frozen=True)
class Sample:
    """One source: what it does, and the names that must be refused, none for an honest one."""

    what: str
    source: str
    refused: tuple[str, ...] = ()
    gpu: bool = False


SAMPLES = (
    Sample("calls write by an assembler name",
           'long quiet(int, const void*, unsigned long) asm("write");\n'
           "long f() { return quiet(1, 0, 0); }", ("write",)),
    Sample("calls its own function by an assembler name",
           'long quiet(int n) asm("_Z5plainv");\n'
           "long quiet(int n) { return n; } long f() { return quiet(1); }"),
    Sample("pastes a name together",
           '#define PASTE(a, b) a##b\nextern "C" char* PASTE(get, env)(const char*);\n'
           'char* f() { return PASTE(get, env)("HOME"); }', ("getenv",)),
    Sample("pastes the name of a local variable",
           "#define PASTE(a, b) a##b\nint f(int n) { int PASTE(get, env) = n; return getenv; }"),
    Sample("asks for a function weakly",
           'extern "C" int system(const char*) __attribute__((weak));\n'
           'int f() { return system ? system("") : 0; }', ("system",)),
    Sample("asks the engine for what the headers never do",
           "namespace pk::sim { int finish(int); }\nint f() { return pk::sim::finish(1); }",
           ("_ZN2pk3sim6finishEi",)),
    Sample("asks the engine for what the headers do",
           "namespace pk::sim { struct fiber; int rank_of(const fiber&); }\n"
           "int f(const pk::sim::fiber& me) { return pk::sim::rank_of(me); }"),
    Sample("defines a function of the engine, weakly",
           "namespace pk::sim { struct fiber; __attribute__((weak)) int rank_of(const fiber&) "
           "{ return 0; } }", ("_ZN2pk3sim7rank_ofERKNS0_5fiberE",)),
    Sample("specialises a template of pk",
           "namespace pk { template <class T> struct size { static int of(); }; "
           "template <> int size<int>::of() { return 4; } }", ("_ZN2pk4sizeIiE2ofEv",)),
    Sample("uses a template of pk",
           "namespace pk { template <class T> struct size { static int of() { return 4; } }; }\n"
           "int f() { return pk::size<long>::of(); }"),
    Sample("has a clock of its own", 'extern "C" int clock_gettime(int, void*) { return 0; }',
           ("clock_gettime",)),
    Sample("has a function that looks like a clock", "int clock_gettime(int, void*) { return 0; }"),
    Sample("makes a weak alias of the C library's read",
           'extern "C" long mine(int n) { return n; }\n'
           'extern "C" long read(int n) __attribute__((weak, alias("mine")));', ("mine", "read")),
    Sample("makes an alias of its own function", 'int one() { return 1; }\n'
           'int other() __attribute__((weak, alias("_Z3onev")));'),
    Sample("allocates memory for everybody",
           "void* operator new(decltype(sizeof(0))) { return nullptr; }", ("_Znwm",)),
    Sample("defines a function of the standard library",
           "namespace std { void terminate() noexcept { for (;;) {} } }", ("_ZSt9terminatev",)),
    Sample("defines one of its classes, weakly",
           "namespace std { template <class T> struct ios { int flags(); };\n"
           "template <class T> int ios<T>::flags() { return 0; } template struct ios<char>; }",
           ("_ZNSt3iosIcE5flagsEv",)),
    Sample("runs before main",
           "__attribute__((constructor)) static void early() { for (volatile int n = 9; n; --n); }",
           (".init_array", ".rela.init_array", "_ZL5earlyv")),
    Sample("runs after main",
           "__attribute__((destructor)) static void late() { for (volatile int n = 9; n; --n); }",
           (".fini_array", ".rela.fini_array")),
    Sample("runs before the library is used",
           "__attribute__((constructor)) static void early() { for (volatile int n = 9; n; --n); }",
           ("_ZL5earlyv",), gpu=True),
    Sample("registers its kernels as nvcc does",
           "__attribute__((constructor)) static void __sti____cudaRegisterAll()\n"
           "{ for (volatile int n = 9; n; --n); }", gpu=True),
    Sample("counts its calls", "int f() { static int calls; return ++calls; }", ("_ZZ1fvE5calls",)),
    Sample("has a variable", "namespace mine { int seen = 3; int f() { return ++seen; } }",
           ("_ZN4mine4seenE",)),
    Sample("has tables of constants",
           "inline constexpr int table[4] = {1, 2, 3, 4}; constexpr int own[4] = {4, 3, 2, 1};\n"
           "struct k { static constexpr int kept[3] = {1, 2, 3}; };\n"
           "const int* f(int i) { static constexpr int here[2] = {5, 6}; return i > 3 ? own : "
           "i > 2 ? table + i : i > 1 ? k::kept : here; }"),
    Sample("has a constant named as a variable of the C library",
           "inline constexpr int environ[2] = {1, 2}; int f(int i) { return environ[i]; }",
           ("environ",)),
    Sample("chooses a function at the start",
           'static int one() { return 1; }\nextern "C" { static int (*pick())() { return one; } }\n'
           'int chosen() __attribute__((ifunc("pick")));', ("_Z6chosenv",)),
    Sample("keeps a variable per thread",
           "namespace mine { thread_local int kept; int f() { return ++kept; } }",
           ("_ZN4mine4keptE", ".tbss")),
    Sample("puts code into a section of its own",
           '__attribute__((section(".init"))) int f() { return 1; }', (".init",)),
    Sample("puts code among the data",
           '__attribute__((section(".data.f"))) int f() { return 1; }', (".data.f",)),
    Sample("launches as the headers do",
           'extern "C" int cudaGetDevice(int*);\nint f() { int d; return cudaGetDevice(&d); }',
           gpu=True),
    Sample("allocates on the device",
           'extern "C" int cudaMalloc(void**, unsigned long);\n'
           "int f() { void* p; return cudaMalloc(&p, 8); }", ("cudaMalloc",), gpu=True),
    Sample("calls the device in a simulation",
           'extern "C" int cudaGetDevice(int*);\nint f() { int d; return cudaGetDevice(&d); }',
           ("cudaGetDevice",)),
    Sample("computes", "extern \"C\" float sqrtf(float);\n"
           "struct row { float x[64]; };\nrow copy(const row& r) { return r; }\n"
           "float f(float x) { return sqrtf(x) + 1; }"),
)  # fmt: skip


@contextmanager
def built(sample: Sample) -> Iterator[Path]:
    """The object of a sample, compiled with this machine's g++."""
    tool = gxx()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sample.cc").write_text(sample.source, encoding="utf-8")
        argv = (str(tool.path), "-std=c++20", "-O1", "-w", "-c", "sample.cc", "-o", "sample.o")
        env = {"PATH": search_path(tool), "LC_ALL": "C", "TMPDIR": "."}
        done = LocalExecutor().run(Command(argv, folder, (), env, Limits(30, 1 << 30)))
        if not done.ok:
            raise RuntimeError(f"{sample.what}: {done.stderr.decode(errors='replace')}")
        yield folder / "sample.o"
