"""What is no C++ becomes C++, line by line."""

import pytest

from pk_runtime.emulator.builder import HEADERS
from pk_runtime.emulator.translate import TranslationError, translate


def test_inline_assembly_becomes_a_call_with_its_text() -> None:
    source = 'asm volatile("st.u32 [%0], %1;" ::"l"(at), "r"(f(a ? b : c)) : "memory");'
    text = translate(source)
    assert 'pk_program{"st.u32 [%0], %1;" }' in text
    assert "given('l', at), ::pk::emulated::given('r', f(a ? b : c))" in text
    assert "memory" not in text
    assert "asm" not in text


def test_outputs_come_before_inputs_and_both_may_be_missing() -> None:
    assert "written('r', x) ,  ::pk::emulated::given('r', y)" in translate(
        'asm("mov.b32 %0, %1;" : "=r"(x) : "r"(y));'
    )
    assert "run({});" in translate('asm volatile("trap;");')
    assert "changed('f', v)" in translate('asm volatile("" : "+f"(v)::"memory");')


def test_lines_stay_where_they_are() -> None:
    for path in HEADERS.rglob("*.h"):
        if "sim" not in path.parts:
            source = path.read_text()
            assert translate(source).count("\n") == source.count("\n"), path.name


def test_parameters_and_dynamic_shared_memory() -> None:
    assert translate("void k(const __grid_constant__ K::args g)") == "void k(const K::args& g)"
    memory = translate("extern __shared__ __align__(1024) unsigned char block_memory[];")
    assert memory == "#define block_memory (::pk::emulated::shared_memory())"


@pytest.mark.parametrize("source", ['asm volatile("trap;"', "__shared__ int counter;"])
def test_what_cannot_be_read_is_refused(source: str) -> None:
    with pytest.raises(TranslationError):
        translate(source)
