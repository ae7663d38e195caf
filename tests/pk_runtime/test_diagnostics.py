"""Compiler output becomes records: the candidate's line first, nothing of this machine."""

from pathlib import Path

import pytest

from pk_runtime.diagnostics import (
    MAX_ERRORS,
    MAX_MESSAGE,
    Diagnostic,
    SourceTree,
    foreign_headers,
    parse,
    render,
)

SOURCE = "#include <pk/pk.h>\nint helper();\nint x = helper();\n"
HEADERS = (Path("/srv/pk/include"), Path("/usr/include"), Path("/usr/lib/gcc"))
TREE = SourceTree({"kernel.cu": SOURCE, "lib/a.cuh": ""}, "kernel.cu", HEADERS)


def only(log: str) -> Diagnostic:
    records = parse(log, TREE)
    assert len(records) == 1, records
    return records[0]


def test_a_plain_error() -> None:
    record = only("kernel.cu:4:36: error: 'x' was not declared in this scope\n")
    assert record == Diagnostic("kernel.cu", 4, 36, "error", "'x' was not declared in this scope")
    assert str(record) == "kernel.cu:4:36: error: 'x' was not declared in this scope"


def test_warnings_and_their_notes_are_left_out() -> None:
    log = (
        "kernel.cu:1:1: warning: unused\n"
        "kernel.cu:1:1: note: declared here\n"
        "kernel.cu:2:1: error: bad\n"
        "kernel.cu:2:5: note: because of this\n"
        "kernel.cu:3:1: warning: unused\n"
        "kernel.cu:3:1: note: declared here\n"
    )
    assert render(parse(log, TREE)) == (
        "kernel.cu:2:1: error: bad\n  kernel.cu:2:5: note: because of this"
    )


def test_an_error_in_a_header_moves_to_the_line_that_led_to_it() -> None:
    log = """In file included from kernel.cu:1:
/srv/pk/include/pk/sim/tile.h: In instantiation of 'struct pk::tile<17, 64>':
/srv/pk/include/pk/gemm.h:9:5:   required from 'struct pk::gemm<17>'
kernel.cu:3:51:   required from here
/srv/pk/include/pk/sim/tile.h:4:60: error: static assertion failed: rows % 16
/srv/pk/include/pk/sim/tile.h:4:60: note: the comparison reduces to '(1 == 0)'
"""
    assert render(parse(log, TREE)).splitlines() == [
        "kernel.cu:3:51: error: static assertion failed: rows % 16",
        "  pk/sim/tile.h:4:60: note: reported here",
        "  pk/sim/tile.h:4:60: note: in instantiation of 'struct pk::tile<17, 64>'",
        "  pk/sim/tile.h:4:60: note: the comparison reduces to '(1 == 0)'",
    ]


def test_an_error_in_a_header_without_a_trace_moves_to_its_include() -> None:
    log = (
        "In file included from /srv/pk/include/pk/pk.h:3,\n"
        "                 from kernel.cu:1:\n"
        "/srv/pk/include/pk/x.h:7:1: error: bad\n"
    )
    assert str(parse(log, TREE)[0]) == "kernel.cu:1: error: bad"


def test_a_macro_leads_to_where_it_is_used() -> None:
    log = (
        "/srv/pk/include/pk/pk.h:8:1: error: 'gem' has not been declared\n"
        "kernel.cu:9:1: note: in expansion of macro 'PK_KERNEL'\n"
    )
    assert str(parse(log, TREE)[0]) == "kernel.cu:9:1: error: 'gem' has not been declared"


def test_an_error_in_the_candidates_own_template_says_who_asked_for_it() -> None:
    log = (
        "kernel.cu: In instantiation of 'struct F<3>':\n"
        "kernel.cu:20:5:   required from here\n"
        "kernel.cu:2:9: error: static assertion failed\n"
    )
    assert [str(record) for record in parse(log, TREE)] == [
        "kernel.cu:2:9: error: static assertion failed",
        "kernel.cu:20:5: note: required from here",
        "kernel.cu:2:9: note: in instantiation of 'struct F<3>'",
    ]


def test_the_standard_librarys_candidates_are_left_out() -> None:
    log = """kernel.cu:4:36: error: no matching function for call to 'f(int)'
/usr/include/c++/12/bits/basic_string.h:786:9: note: candidate: 'basic_string(const _Tp&)'
/usr/include/c++/12/bits/basic_string.h:786:9: note:   template argument deduction failed:
/usr/include/c++/12/type_traits: In substitution of 'using enable_if_t = typename X':
/usr/include/c++/12/type_traits:2614:11: error: no type named 'type' in 'struct enable_if'
kernel.cu:4:36: note:   candidate expects 4 arguments, 1 provided
kernel.cu:2:5: note: candidate: 'f(double, int)'
kernel.cu:2:5: note:   candidate expects 2 arguments, 1 provided
kernel.cu:2:5: note: candidate: 'f(double, int)'
"""
    assert [str(record) for record in parse(log, TREE)] == [
        "kernel.cu:4:36: error: no matching function for call to 'f(int)'",
        "kernel.cu:2:5: note: candidate: 'f(double, int)'",
        "kernel.cu:2:5: note: candidate expects 2 arguments, 1 provided",
    ]


def test_undefined_and_duplicate_symbols() -> None:
    log = "/usr/bin/ld: ./ccX.o: in function `main':\nk.cu:(.text+0x5): undefined reference to "
    assert str(only(log + "`helper()'")) == "kernel.cu:2: error: 'helper()' is used but not defined"
    assert "PK_KERNEL(name)" in only(log + "`pk_program'").message
    duplicate = "/usr/bin/ld: /c/engine.a(main.o): multiple definition of `main'; ./ccX.o: first"
    assert "'main' is defined twice" in only(duplicate).message


def test_nvcc_errors_with_their_details() -> None:
    log = """kernel.cu(3): error: no instance of overloaded function "f" matches the argument list
            argument types are: (int *)
   template<class T> __attribute__((device)) int g(T t){ return f(t.x); }
                                                                ^
kernel.cu(2): note #3326-D: function "f(long *)" does not match
          detected during instantiation of "int g(T) [with T=S]" at line 40

kernel.cu(4): warning #549-D: variable "s" is used before its value is set
At end of source: error: expected a "}"
kernel.cu(1): note #3196-D: to match this "{"

3 errors detected in the compilation of "kernel.cu".
"""
    assert [str(record) for record in parse(log, TREE)] == [
        'kernel.cu:3: error: no instance of overloaded function "f" matches the argument list; '
        "argument types are: (int *)",
        "kernel.cu:40: note: required from here",
        'kernel.cu:2: note: function "f(long *)" does not match',
        'kernel.cu:3: note: in instantiation of "int g(T) [with T=S]"',
        'kernel.cu:3: error: expected a "}"',
        'kernel.cu:1: note: to match this "{"',
    ]


def test_an_nvcc_error_in_a_header_moves_to_the_candidate() -> None:
    log = """/srv/pk/include/pk/sm90/tile.h(9): error: static assertion failed with "rows"
          detected during:
            instantiation of class "pk::tile<R> [with R=3]" at line 12 of /srv/pk/include/pk/g.h
            instantiation of "void run()" at line 31 of kernel.cu
"""
    records = parse(log, TREE)
    assert str(records[0]) == 'kernel.cu:31: error: static assertion failed with "rows"'
    assert (records[1].file, records[1].line) == ("pk/sm90/tile.h", 9)


def test_ptxas_errors() -> None:
    log = (
        "ptxas ./tmpxft_0-6_kernel.ptx, line 37; error   : Unknown symbol 'x'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n"
        "ptxas error   : Entry function 'f' uses too much shared data (0x61a80 bytes)\n"
    )
    assert [record.message for record in parse(log, TREE)] == [
        "ptxas: Unknown symbol 'x' (line 37 of the generated PTX)",
        "ptxas: Entry function 'f' uses too much shared data (0x61a80 bytes)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "/srv/pk/include/pk/x.h:3:1: error: in /srv/pk/include/pk/y.h and /home/me/.ssh/id_rsa",
        "kernel.cu:3:1: error: cannot open ../../home/me/.ssh/id_rsa",
        "/home/me/.ssh/id_rsa:3:1: error: bad",
        "kernel.cu:1:1: error: bad\n/home/me/.ssh/id_rsa:1:1: note: here",
        "/usr/bin/ld: /home/me/.ssh/id_rsa: undefined reference to `/home/me/.ssh/id_rsa'",
        "g++: error: /home/me/.ssh/id_rsa: No such file or directory",
    ],
)
def test_no_path_of_this_machine_is_shown(text: str) -> None:
    shown = render(parse(text, TREE))
    assert shown
    for secret in ("/srv", "/home", ".ssh", "/usr"):
        assert secret not in shown


def test_a_division_is_not_a_path() -> None:
    assert only("kernel.cu:1:1: error: 'a/b' or 'x)/y' or 3/4").message == "'a/b' or 'x)/y' or 3/4"


def test_repeated_errors_are_told_once_and_many_are_cut() -> None:
    assert len(parse("kernel.cu:1:1: error: bad\n" * 5, TREE)) == 1
    log = "".join(f"kernel.cu:{line}:1: error: bad\n" for line in range(1, 100))
    assert len(parse(log, TREE)) == MAX_ERRORS


def test_long_and_unprintable_messages_are_cut() -> None:
    noise = " [with T = " + "std::vector<int>, " * 100 + "U = int]"
    assert only(f"kernel.cu:1:1: error: bad{noise} call").message == "bad call"
    assert len(only("kernel.cu:1:1: error: " + "x" * 3000).message) == MAX_MESSAGE
    assert only("kernel.cu:1:1: error: a\x1b[31mb\x00c").message == "a[31mbc"


@pytest.mark.parametrize(
    "line",
    [
        "kernel.cu:1:1: error: " + " [with " * 500_000,
        "ptxas " + " error" * 500_000,
        "g++" + " " * 3_000_000,
        "x: instantiation of " * 150_000,
        "kernel.cu:1:1: error: " + "/a" * 1_000_000,
        "\n" * 3_000_000,
    ],
)
def test_hostile_output_is_read_quickly(line: str) -> None:
    # Quadratic reading would run into the test's time limit.
    parse(f"kernel.cu:1:1: error: first\n{line}", TREE)


def test_output_that_is_not_understood_is_empty() -> None:
    assert parse("", TREE) == ()
    assert parse("something else\n", TREE) == ()


def test_foreign_headers_are_found() -> None:
    log = (
        ". /srv/pk/include/pk/pk.h\n.. /usr/include/c++/12/vector\n"
        "... /usr/include/../include/x.h\n"
        "! /srv/pk/include/pk/pk.h.gch\n. lib/a.cuh\n. ./lib/a.cuh\nkernel.cu:1:1: error: bad\n"
    )
    assert foreign_headers(log, TREE) == ()
    foreign = ". /etc/passwd\n.. /srv/pk/include/../../../etc/shadow\n. /srv/pk/include2/x.h\n"
    assert len(foreign_headers(log + foreign, TREE)) == 3
