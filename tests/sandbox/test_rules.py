"""The static rules: honest kernels pass, tricks are named with their line."""

from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.kernels import shipped_kernel, shipped_names
from pk_runtime.triton import examples
from sandbox.rules.scan import Violation, scan
from sandbox.rules.tokens import tokens


def scanned(source: str) -> tuple[Violation, ...]:
    return scan(Candidate("pk", {"kernel.cu": source}))


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_kernels_pass(name: str) -> None:
    assert scan(shipped_kernel(name)) == ()


HONEST = (
    "#include <pk/pk.h>",
    "#pragma once\n#include <pk/pk.h>  // the only header\nusing namespace pk;",
    "// reinterpret_cast, asm and std::cout in a comment\n/* static int x; */",
    'void f(host& h) { h.require(true, "no __asm__, no static, no ::system()"); }',
    "constexpr int stages = knob(\"stages\", 4, {2, 3, 4});",
    "struct k { static constexpr int n = 4; static constexpr int at(int i) { return i; } };",
    "template <int N> struct box { int size() const { return N; } };",
    "inline int twice(int x) { return 2 * x; }",
    "namespace { constexpr int four = 4; struct pair { int a, b; }; }",
    "namespace mine { inline float gelu(float x) { return x / (1.0f + x); } }",
    "using chunk = tile<bf16, 64, 64>;\nstatic_assert(chunk::rows == 64, \"rows\");",
    "struct k { PK_ROLE loader(issuer self, shared& s) { auto& x = s.in.wait(); } };",
    "void f() { auto g = [&](auto& x, int i) { return x + i; }; auto h = [=, &g] { return 1; }; }",
    "void f() { for ([[maybe_unused]] int t : tasks()) { } int a = b & c, d = b && c, e = 1'000; }",
    "template <class A, class B> using pick = std::conditional_t<std::is_same_v<A, B>, A, B>;",
    "enum class mode { a, b };\nstruct opaque;",
    "PK_KERNEL(mine)\n",
    "void f(group<> self, signals s) { signal(self, s, 0, 1); wait(self, s, 0, 1); s.open(self); }",
    "consteval int half(int x) { return x / 2; }",
    "struct k { using S = slab<bf16, 16, 64, 1>; slab_sum<bf16, 16, 64, 1> sum; mailbox<S> box; };",
    'void f(host& h, args& g) { h.input_parts("x", g.x, {.cols = 64, .parts = h.world()}); }',
    'void f(host& h, args& g) { h.output("y", g.y, view{2, 64}); h.mailbox("box", g.box, 4); }',
    "void f(group<0> self, S& v) { post(self, g.box, 1, 0, v); take(self, v, g.box, 1, 0); }",
    "void f(group<1> self, S& v) { take_sum(self, sum, g.box, 0, v); convert(self, v, sum); }",
    "void f() { PK_UNROLL for (int j = 0; j < 2; ++j) { } }",
)  # fmt: skip


@pytest.mark.parametrize("source", HONEST)
def test_honest_code_passes(source: str) -> None:
    assert scanned(source) == ()


FORBIDDEN = (
    ("#include <cstdio>", "#include"),
    ('#include "/etc/passwd"', "#include"),
    ("#define wait(...)", "#define"),
    ("#if 0\n#endif", "#if"),
    ("%:include <cstdio>", "digraph"),
    ("#include <pk/pk.h> /*\n*//**/ int x;", "#include"),
    ("_Pragma(\"GCC optimize\")", "_Pragma"),
    ("void f() { asm(\"syscall\"); }", "asm"),
    ("void f() { __asm__(\"syscall\"); }", "__asm__"),
    ("void f() { __builtin_trap(); }", "__builtin_trap"),
    ("void f() { as\\\nm(\"\"); }", "backslash"),
    ("// comment \\\nint x;", "comment"),
    ("auto s = R\"(\n)\";", "raw string"),
    ("void f() { auto p = reinterpret_cast<int>(x); }", "reinterpret_cast"),
    ("void f() { const_cast<args&>(g).n = 1; }", "const_cast"),
    ("void f() { g(&x); }", "&x"),
    ("void f() { auto p = &x; }", "&x"),
    ("void f() { auto p = bitand x; }", "bitand"),
    ("void f() { float* p = q; }", "float*"),
    ("void f() { g((char*)x); }", "char*"),
    ("void f() { new int; }", "new"),
    ("extern \"C\" void f();", "extern"),
    ("void f() { goto out; out: ; }", "goto"),
    ("void f() { sim::arithmetic(); }", "sim"),
    ("void f() { pk::sim::signal(a); }", "sim"),
    ("namespace engine = pk::sim;", "sim"),
    ("using namespace sim;", "sim"),
    ("namespace pk { int x(); }", "namespace pk"),
    ("void f() { if (t.data) return; }", ".data"),
    ("void f() { g.a.ref.row_stride = 0; }", ".ref"),
    ("void f() { s.x.storage[0] = 1; }", ".storage"),
    ("void f() { auto [a, b, c, d] = g.a; }", "auto ["),
    ("void f() { auto& [a, b] = g.a; }", "auto ["),
    ("void f() { printf(\"PASS\"); }", "printf"),
    ("void f() { std::printf(\"PASS\"); }", "std::printf"),
    ("void f() { std::thread t; }", "std::thread"),
    ("using namespace std;", "std"),
    ("void f() { ::kill(1, 9); }", "kill"),
    ("void f() { ::signal(11, h); }", "::signal"),
    ("void f() { exit(0); }", "exit"),
    ("void f() { clock(); }", "clock"),
    ("int main() { return 0; }", "main"),
    ("int counter = 0;", "int counter"),
    ("int counter;", "int counter"),
    ("float cache[4] = {1, 2};", "float cache"),
    ("namespace { int counter; }", "int counter"),
    ("struct evil { evil(); } instance;", "struct evil"),
    ("template <class T> int state = 0;", "template"),
    ("inline int counter = 0;", "inline int"),
    ("const int x = f();", "const int"),
    ("void f() { static int n = 0; }", "static"),
    ("struct k { static inline int n = 0; };", "static"),
    ("struct k { static int n; };", "static"),
    ("void f() { static int n(5); }", "static"),
    ("thread_local int n;", "thread_local"),
    ("struct k { mutable int n; };", "mutable"),
    ("struct k { virtual void f(); };", "virtual"),
    ("[[gnu::constructor]] void f() { }", "gnu"),
    ("void f() { throw 1; }", "throw"),
    ("\x0cint f();", "stray"),
    ("// \r /*\nint f(); // */", "comment"),
    ("/* never closed", "stray"),
)  # fmt: skip


@pytest.mark.parametrize(("source", "token"), FORBIDDEN, ids=lambda text: text[:30])
def test_tricks_are_named(source: str, token: str) -> None:
    found = scanned(f"#include <pk/pk.h>\nusing namespace pk;\n{source}\n")
    assert found, source
    assert any(token in f".{violation.token}" or token in violation.token for violation in found)
    assert all(violation.line >= 3 for violation in found)
    for violation in found:
        assert violation.why
        assert violation.instead
        assert violation.instead in str(violation)


def test_lines_are_the_sources() -> None:
    source = '#include <pk/pk.h>\n/* two\nlines */ int f();\n"text"; goto x;\n\n  asm("");\n'
    assert [(v.line, v.token) for v in scanned(source) if v.token in {"goto", "asm"}] == [
        (4, "goto"),
        (6, "asm"),
    ]


def test_every_rule_is_needed_once() -> None:
    source = 'void f() { asm(""); asm(""); }'
    assert len([v for v in scanned(source) if v.token == "asm"]) == 1


EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.cu"))


def raw(source: str, **files: str) -> tuple[Violation, ...]:
    return scan(Candidate("cuda", {"kernel.cu": source, **files}))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_raw_examples_pass(path: Path) -> None:
    assert raw(path.read_text(encoding="utf-8")) == ()


RAW_HONEST = (
    "#include <pk/raw.h>\n#include <cuda_bf16.h>\n#include <cuda/atomic>  // device code",
    '#pragma once\nconstexpr int threads = knob("threads", 256, {256, 512});',
    "__global__ void __launch_bounds__(512, 1) k(float* p, int n) { p[threadIdx.x] = n; }",
    "__device__ __forceinline__ int bits(float x) { return *reinterpret_cast<int*>(&x); }",
    "__global__ void k() { extern __shared__ float s[]; __shared__ int t[4]; t[0] = s[0]; }",
    '__device__ void st(int* p) { asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(p)); }',
    "__device__ void f(int4* a, int4* b) { memcpy(a, b, 16); long long t = clock64(); }",
    "void launch(const args& g, const raw::call& at) { k<<<at.blocks, 512, 0, at.stream>>>(g); }",
    "void launch(const args& g, const raw::call& at) { raw::start(at, k, 9, 512, 0, g, at.self); }",
    "template <class T> using plain = std::remove_cv_t<T>;",
    "static __device__ int f() { return 1; }",
    'struct k { static void setup(raw::host& h, args& g) { h.signals("done", g.done, 4); } };',
    "PK_RAW(mine)\n",
)


@pytest.mark.parametrize("source", RAW_HONEST)
def test_honest_raw_code_passes(source: str) -> None:
    assert raw(source) == ()


def test_raw_code_includes_its_own_files() -> None:
    source = '#include "tools/add.cuh"\n'
    assert raw(source, **{"tools/add.cuh": "#include <pk/raw.h>\n"}) == ()
    assert [v.token for v in raw(source)] == ['#include "tools/add.cuh"']


RAW_FORBIDDEN = (
    ("#include <cstdio>", "#include"),
    ("#include <cuda_runtime.h>", "#include"),
    ("#define LOAD(x) x", "#define"),
    ("void launch() { cudaMalloc(&p, 4); }", "cudaMalloc"),
    ("void launch() { cudaMallocAsync(&p, 4, at.stream); }", "cudaMallocAsync"),
    ("void launch() { cudaStreamSynchronize(at.stream); }", "cudaStreamSynchronize"),
    ("void launch() { ::cudaDeviceSynchronize(); }", "cudaDeviceSynchronize"),
    ("void launch() { cudaStreamCreate(&s); }", "cudaStreamCreate"),
    ("void launch() { cudaMemcpyAsync(a, b, 4, k, at.stream); }", "cudaMemcpyAsync"),
    ("void launch() { auto f = cudaEventCreate; }", "cudaEventCreate"),
    ("void setup() { cuMulticastCreate(&m, &p); }", "cuMulticastCreate"),
    ("void setup() { cuMemCreate(&m, 1, &p, 0); }", "cuMemCreate"),
    ("void setup() { cudaMallocManaged(&p, 1l << 40); }", "cudaMallocManaged"),
    ("void setup() { cuMemAllocManaged(&p, 1l << 40, 1); }", "cuMemAllocManaged"),
    ("void setup() { auto m = cuMulticastAddDevice; }", "cuMulticastAddDevice"),
    ("void launch() { ncclAllReduce(a, b, n, t, o, c, s); }", "ncclAllReduce"),
    ("void launch() { cublasGemmEx(h); }", "cublasGemmEx"),
    ("__device__ void f() { asm volatile(\"multimem.red.add.f32 [%0], %1;\" :: ); }", "multimem"),
    ("__device__ void f() { asm(\"multi\" \"mem.st.f32 [%0], %1;\" :: ); }", "multimem"),
    ("__device__ void f() { cuda::ptx::multimem_st(a, b); }", "multimem_st"),
    ("void launch() { asm(\"syscall\"); }", "syscall"),
    ("__device__ int counter;", "__device__ int counter"),
    ("__managed__ int counter;", "__managed__"),
    ("__constant__ float table[4];", "__constant__"),
    ("int calls = 0;", "int calls"),
    ("void launch() { static int calls = 0; }", "static"),
    ("extern \"C\" void f();", "extern"),
    ("extern \"C\" int pk_launch() { return 0; }", "pk_launch"),
    ("__attribute__((constructor)) void f() { }", "__attribute__"),
    ("[[gnu::constructor]] void f() { }", "gnu"),
    ("void setup() { std::ofstream f; }", "std::ofstream"),
    ("void setup() { open(a, 0); }", "open"),
    ("void setup() { dlopen(a, 0); }", "dlopen"),
    ("void launch() { fork(); }", "fork"),
    ("void f() { pk::sm90::launch l; }", "sm90"),
    ("namespace pk { int x(); }", "namespace pk"),
    ("int main() { return 0; }", "main"),
)  # fmt: skip


@pytest.mark.parametrize(("source", "token"), RAW_FORBIDDEN, ids=lambda text: text[:40])
def test_what_a_raw_candidate_may_not_do_is_named(source: str, token: str) -> None:
    found = raw(f"#include <pk/raw.h>\nusing namespace pk;\n{source}\n")
    assert any(token in violation.token for violation in found), found
    assert all(v.line == 3 and v.why and v.instead for v in found)


TRITON_EXAMPLES = sorted(Path(examples.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("path", TRITON_EXAMPLES, ids=lambda path: path.stem)
def test_the_triton_examples_pass(path: Path) -> None:
    found = scan(Candidate("triton", {"kernel.py": path.read_text(encoding="utf-8")}))
    assert (found == ()) == (path.stem != "worker"), found  # that one is a program, no candidate


TRITON_FORBIDDEN = (
    ("import os", "import os"),
    ("from torch import distributed", "torch.distributed"),
    ("from triton.language import *", "*"),
    ("def launch(p, i, o):\n    getattr(p, 'x')", "getattr"),
    ("def launch(p, i, o):\n    p.__class__", ".__class__"),
    ("def launch(p, i, o):\n    o['y'] = None", "o['y']"),
    ("def launch(p, i, o):\n    launch.kept = o", "launch.kept"),
    ("KEPT = []", "KEPT"),
    ("def launch(p, i, o, kept={}):\n    pass", "{}"),
    ("import torch\ndef launch(p, i, o):\n    torch.sum(i['x'])", "torch.sum"),
    ("import torch\ndef launch(p, i, o):\n    torch.cuda.Stream()", "torch.cuda.Stream"),
    ("def f(:", "syntax"),
    ("x = '\\0' * 10 ** 9 * f()", "x ="),
)


@pytest.mark.parametrize(("source", "token"), TRITON_FORBIDDEN, ids=lambda text: text[:30])
def test_what_a_triton_candidate_may_not_do_is_named(source: str, token: str) -> None:
    found = scan(Candidate("triton", {"kernel.py": source}))
    assert any(token in violation.token for violation in found), found
    assert all(v.why and v.instead for v in found)


def test_tokens_of_any_text() -> None:
    """No input ends the scanner with an error, and no character is lost but blanks and comments."""
    import random

    source = random.Random(7)
    alphabet = "ab_1.'\"\\\n /*#%:<>[](){}&=;R\r\t\x0b\u00e9\u2028"
    for _ in range(2000):
        text = "".join(source.choice(alphabet) for _ in range(40))
        for token in tokens(text):
            assert 1 <= token.line <= text.count("\n") + 1
