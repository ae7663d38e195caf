"""What a built kernel may refer to and define: the names in its object file, before any link.

The rules on source text can only see what is spelled out. An assembler name, an alias, a pasted
token or a header that nobody thought of ends as a symbol here, whatever the source looked like.
What the compiled code does without any name, inline assembly above all, is not seen.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from pk_runtime.compiler import INCLUDE
from sandbox.rules.elf import ElfError, Object, Section, Symbol, read_object
from sandbox.rules.names import C_NAMES
from sandbox.rules.parts import words

# (name, why it is refused)
Refusal = tuple[str, str]

# What a compiler calls by itself, and the C++ runtime behind templates of the pk headers.
_COMPILER = words(
    "memcpy memmove memset memcmp strlen _GLOBAL_OFFSET_TABLE_ _Unwind_Resume __stack_chk_fail "
    "__memcpy_chk __memmove_chk __memset_chk __gxx_personality_v0 __cxa_begin_catch "
    "__cxa_end_catch __cxa_rethrow __cxa_throw_bad_array_new_length __cxa_pure_virtual "
    "__divti3 __udivti3 __modti3 __umodti3 _ZSt9terminatev"
)
_MEMORY = re.compile(r"_Z(nw|na)m(St11align_val_t)?|_Zd[la]Pv(m)?(St11align_val_t)?")
_THROWS = re.compile(r"_ZSt\d+__(throw_\w+|glibcxx_assert_fail\w+)")
_MATH = words(
    "sqrtf expf exp2f expm1f logf log2f log10f log1pf powf tanhf sinhf coshf sinf cosf tanf "
    "asinf acosf atanf atan2f erff erfcf fmaf fmodf remainderf floorf ceilf roundf rintf truncf "
    "nearbyintf lrintf lroundf cbrtf hypotf fminf fmaxf ldexpf frexpf "
    "sqrt exp exp2 expm1 log log2 log10 log1p pow tanh sin cos fma fmod floor ceil round rint trunc"
)
# The host side of a launch on a GPU, as the headers of sm90 write it.
_LAUNCHER = words(
    "atexit snprintf __snprintf_chk __cxa_allocate_exception __cxa_free_exception __cxa_throw "
    "__cxa_guard_acquire __cxa_guard_release __cxa_guard_abort _ZTISt13runtime_error "
    "_ZTISt9exception _ZTVN10__cxxabiv117__class_type_infoE "
    "_ZTVN10__cxxabiv120__si_class_type_infoE "
    "__cudaGetKernel __cudaLaunchKernel __cudaPushCallConfiguration __cudaPopCallConfiguration "
    "__cudaRegisterFatBinary __cudaRegisterFatBinaryEnd __cudaRegisterFunction "
    "__cudaUnregisterFatBinary __cudaRegisterVar __cudaInitModule "
    "cudaDeviceGetAttribute cudaFuncSetAttribute cudaGetDevice cudaGetLastError "
    "cudaGetErrorString cudaLaunchKernel cudaLaunchKernelExC cudaGetDriverEntryPointByVersion "
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaMemcpyFromSymbol"
)
_TEXTS = re.compile(r"_ZNK?St(7__cxx1112basic_stringI|13runtime_error|9exception)\w+")

_OWN = {False: words("pk_program"), True: words("pk_description pk_kernel pk_setup pk_prepare "
                                                "pk_launch pk_trace")}  # fmt: skip
_REGISTERS = "_ZL24__sti____cudaRegisterAllv"
_SECTIONS = re.compile(
    r"|\.(rela)?\.?(text|data|rodata|bss|eh_frame|gcc_except_table|debug_\w+|group)(\..*)?"
    r"|\.(symtab|symtab_shndx|strtab|shstrtab|comment|note\.GNU-stack|note\.gnu\.property)"
)
_GPU_SECTIONS = re.compile(r"\.(rela)?\.?(init_array|nv_fatbin|nvFatBinSegment)")
_OPERATORS = re.compile(r"_Z(nw|na|dl|da)")
_FOREIGN = re.compile(r"_Z(T[VTIS]|GV)?(N[rVKRO]*)?(S[tabsiod]|2pk|9__gnu_cxx|10__cxxabiv1)")
# Templates that the headers of the simulator use; the C++ library itself has none of these built.
_CONTAINERS = re.compile(
    r"_ZN?K?St(6vector|12_Vector_base|10unique_ptr|5array|13__copy_move|\d+__)"
)
_DEFINED_LATE = "its name is looked up by the program around, which would get this one instead"


def refusals(path: Path, *, gpu: bool = False) -> tuple[Refusal, ...]:
    """What an object file has that no kernel needs; empty for a good one."""
    try:
        found = read_object(path)
    except ElfError as error:
        return ((path.name, f"the object file is not what a compiler makes: {error}"),)
    return tuple(dict.fromkeys(_refused(found, gpu)))


def _refused(found: Object, gpu: bool) -> Iterator[Refusal]:
    for section in found.sections:
        yield from _section(section, gpu)
    for name in found.initialisers:
        if name != _REGISTERS:
            yield (
                name or "a function",
                "it runs when the program is loaded, before anything is measured",
            )
    for symbol in found.symbols:
        if symbol.chosen_at_start:
            yield symbol.name, "it is chosen by code that runs when the program is loaded"
        elif symbol.thread_local:
            yield symbol.name, "it keeps state per thread, which the simulator cannot see"
        elif not symbol.defined:
            if symbol.name and not _may_use(symbol.name, gpu):
                yield symbol.name, "a kernel has no use for it: only pk, arithmetic and copies"
        elif not gpu and _kept(symbol, found.section_of(symbol)):
            yield symbol.name, "a variable out here is shared by all ranks and launches"
        elif symbol.binding != "local":
            yield from _defined(symbol, gpu)


def _section(section: Section, gpu: bool) -> Iterator[Refusal]:
    known = _SECTIONS.fullmatch(section.name) or (gpu and _GPU_SECTIONS.fullmatch(section.name))
    if not known:
        yield section.name, "the linker or the loader treats this section in a way of its own"
    elif section.executable and (section.writable or not section.name.startswith(".text")):
        yield section.name, "its contents could be run although they are data"


def _kept(symbol: Symbol, section: Section | None) -> bool:
    """Whether a symbol is a variable; what only the loader writes, addresses above all, is not."""
    changes = section is None or (
        section.writable and not section.name.startswith((".data.rel.ro", ".data.rel.local.DW."))
    )
    return symbol.data and changes


def _may_use(name: str, gpu: bool) -> bool:
    if name in _COMPILER or name in _MATH or _MEMORY.fullmatch(name) or _THROWS.fullmatch(name):
        return True
    if gpu:
        return name in _LAUNCHER or _TEXTS.fullmatch(name) is not None
    return _of_the_engine(name)


def _of_the_engine(name: str) -> bool:
    """Whether a mangled name is that of a function `pk::sim::NAME` which the headers declare."""
    match = re.match(r"_ZN2pk3sim(\d+)", name)
    if match is None:
        return False
    end = match.end() + int(match[1][:3])
    return name[match.end() : end] in _declared() and name[end : end + 1] == "E"


@functools.cache
def _declared() -> frozenset[str]:
    """The functions of pk/sim/engine.h, all that headers of the simulator ask of its engine."""
    text = (INCLUDE / "pk" / "sim" / "engine.h").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^\w[\w:]* (\w+)\(", text, re.MULTILINE))


def _defined(symbol: Symbol, gpu: bool) -> Iterator[Refusal]:
    name = symbol.name
    if not name.startswith("_Z"):
        constant = symbol.data and symbol.binding == "unique" and name not in C_NAMES
        if name not in _OWN[gpu] and not name.startswith("DW.ref.") and not constant:
            yield name, _DEFINED_LATE
    elif _OPERATORS.match(name):
        yield name, "it replaces how the program around gets memory"
    elif not gpu and _of_the_engine(name):
        yield name, _DEFINED_LATE
    elif _FOREIGN.match(name):
        shared = symbol.binding != "global"
        own_template = name.startswith(("_ZN2pk", "_ZNK2pk", "_ZTV", "_ZTI", "_ZTS", "_ZGV"))
        if not shared or not (gpu or own_template or _CONTAINERS.match(name)):
            yield name, "it takes the place of a part of pk or of the standard library"
