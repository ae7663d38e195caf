"""Hostile kernels that the static rules are not asked about: the sandbox and the trust split hold.

Each is a shipped kernel with code that runs before main(). Compiled and run by the judge's own
stages, without the scan; with it, each is rejected before it runs.
"""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from pk_runtime.candidate import Candidate
from pk_runtime.compiler import Compiler
from pk_runtime.kernels import shipped_kernel
from pk_runtime.simulator import Simulator
from pk_runtime.target import parse_target
from problems.hosting import InProcessHost
from problems.registry import get
from sandbox.isolation import BubblewrapExecutor
from sandbox.judge import Judge
from sandbox.rules import scan
from sandbox.stages import StageFailed
from sandbox.stages.bench import Bench
from sandbox.stages.build import build
from sandbox.stages.check import Check, plan
from tests.sandbox.conformance import gone

TARGET = parse_target("sim:h200x4")
PROBLEM = "alltoall"
HEADERS = "".join(
    f"#include <{name}>\n"
    for name in ("csignal", "cstdio", "cstdlib", "cstring", "fcntl.h", "dirent.h", "sys/socket.h",
                 "netinet/in.h", "sys/stat.h", "sys/wait.h", "unistd.h", "vector")
)  # fmt: skip
FORGED = """
void forge(const char* report) {
  std::FILE* file = std::fopen("report.json", "w");
  std::fputs(report, file);
  std::fclose(file);
}
"""


def hostile(body: str, helpers: str = "") -> Candidate:
    """A right kernel that also runs `body` before anything else."""
    evil = f"{HEADERS}{helpers}\nnamespace {{ struct evil {{ evil() {{ {body} }} }} now; }}\n"
    return Candidate("pk", {"kernel.cu": f"{evil}{shipped_kernel('alltoall').source}"})


class Rig:
    """The judge's stages without the scan."""

    def __init__(self, cache: Path, executor: BubblewrapExecutor) -> None:
        self.compiler = Compiler(cache / "build", executor)
        self.simulator = Simulator(executor, cache / "hostile")
        self.host = InProcessHost(get(PROBLEM))

    def check(self, candidate: Candidate) -> str:
        """The status that the check stage gives, with its summary."""
        program = build(self.compiler, candidate)
        check = Check(program, self.simulator, self.host, TARGET.sheet, 5, lambda *_: None)
        try:
            check.run(plan("quick", ["tiny"], 4))
        except StageFailed as failed:
            return f"{failed.status}: {failed.evidence['summary']}"
        return "correct"

    def bench(self, candidate: Candidate) -> str:
        """The status that the bench stage gives, with its summary."""
        program = build(self.compiler, candidate)
        bench = Bench(program, candidate, self.simulator, TARGET, lambda *_: None)
        try:
            bench.run(self.host.describe(4), ["m1024n1024"])
        except StageFailed as failed:
            return f"{failed.status}: {failed.evidence['summary']}"
        return "correct"


@pytest.fixture(scope="module")
def rig(judge: Judge, judge_cache: Path, bubblewrap: BubblewrapExecutor) -> Rig:
    """Shares the judge's engine; `judge` is asked for so that there is one."""
    return Rig(judge_cache, bubblewrap)


def test_the_harness_itself_changes_nothing(rig: Rig) -> None:
    """The positive control: the same form with a harmless body is correct."""
    harmless = hostile("std::vector<int>(3).clear();")
    assert rig.check(harmless) == "correct"
    assert rig.bench(harmless) == "correct"


# What each body must lead to. A body that finds an open door ends in abort(), which is "crashed".
HOLDS = {
    "reads every environment": """
        DIR* proc = opendir("/proc");
        for (dirent* entry; (entry = readdir(proc)) != nullptr;) {
          char path[300], text[4096];
          std::snprintf(path, sizeof path, "/proc/%.200s/environ", entry->d_name);
          int file = open(path, O_RDONLY);
          long size = file < 0 ? 0 : read(file, text, sizeof text - 1);
          if (size > 0) { text[size] = 0;
            for (long i = 0; i < size; ++i) if (text[i] == 0) text[i] = ' ';
            if (std::strstr(text, "PKFORGE") || std::strstr(text, "HOST")) std::abort(); }
        }""",
    "looks for the judge's files": """
        for (const char* path : {"/etc/passwd", "/etc/shadow", "/root", "/home", "/var", "/run"})
          if (access(path, F_OK) == 0) std::abort();""",
    "writes outside": """
        for (const char* path : {"/x", "/usr/x", "/etc/x", "/dev/x", "/proc/x"})
          if (open(path, O_CREAT | O_WRONLY, 0644) >= 0) std::abort();""",
    "calls out": """
        sockaddr_in to{}; to.sin_family = AF_INET; to.sin_port = htons(80);
        to.sin_addr.s_addr = htonl(0xc0000201);
        int s = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) std::abort();""",
    "kills everything it sees": "kill(-1, SIGKILL); kill(1, SIGKILL); kill(getppid(), SIGTERM);",
    "leaves a survivor": """
        if (fork() == 0) { setsid(); std::signal(SIGTERM, SIG_IGN);
          if (fork() == 0) { close(0); for (;;) pause(); }
          _exit(0); }
        wait(nullptr);""",
    "prints a verdict": 'std::puts("PASS correct {\\"status\\": \\"correct\\"}");',
    "fills the disk": """
        static char block[1 << 20];
        for (int i = 0; i < 200; ++i) {
          char name[32]; std::snprintf(name, sizeof name, "/tmp/fill%d", i);
          int file = open(name, O_CREAT | O_WRONLY, 0644);
          for (int j = 0; j < 100 && write(file, block, sizeof block) > 0; ++j) {}
          close(file); }
        for (int i = 0; i < 200; ++i) {
          char name[32]; std::snprintf(name, sizeof name, "/tmp/fill%d", i); unlink(name); }""",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDS)
def test_nothing_to_find_and_nothing_to_break(name: str, rig: Rig, judge_cache: Path) -> None:
    """The kernel is right, so the verdict is `correct`, and the attack came to nothing."""
    candidate = hostile(HOLDS[name])
    assert scan(candidate)
    assert rig.check(candidate) == "correct"
    assert gone(str(judge_cache))


FORGERIES = {
    "claims success": ('forge("{\\"outcome\\": \\"finished\\"}"); _exit(0);',
                       "crashed: an output is unusable"),
    "hands back its inputs": ("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank) {
          char from[64], to[64];
          std::snprintf(from, 64, "in.%d.%d.x.bin", launch, rank);
          std::snprintf(to, 64, "out.%d.%d.y.bin", launch, rank);
          rename(from, to); }
        forge("{\\"outcome\\": \\"finished\\"}"); _exit(0);""", "wrong_output: y on"),
    "links to other files": ("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank) {
          char to[64]; std::snprintf(to, 64, "out.%d.%d.y.bin", launch, rank);
          symlink("/proc/self/exe", to); }
        forge("{\\"outcome\\": \\"finished\\"}"); _exit(0);""", "crashed: an output is unusable"),
    "a report without end": (
        """std::FILE* f = std::fopen("report.json", "w");
        for (int i = 0; i < 8000000; ++i) std::fputs("[", f); std::fclose(f); _exit(0);""",
        "crashed: the program ended with exit code 0 and no report"),
    "a deep report": ("""std::FILE* f = std::fopen("report.json", "w");
        for (int i = 0; i < 100000; ++i) std::fputs("[", f); std::fclose(f); _exit(0);""",
        "crashed: the program ended with exit code 0 and no report"),
    "a report of wrong types": (
        'forge("{\\"outcome\\": [1], \\"summary\\": \\"x\\"}"); _exit(0);', "crashed: "),
    "blames the judge": ('forge("{\\"outcome\\": \\"infra_error\\"}"); _exit(0);', "crashed: "),
    "a silent end": ("_exit(0);", "crashed: the program ended with exit code 0 and no report"),
    "a flood": ("for (;;) std::fputs(\"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\", stderr);",
                "crashed: stopped for exceeding its output limit"),
    "ends the terminal's text": (
        'forge("{\\"outcome\\": \\"fault\\", \\"summary\\": \\"\\\\u001b[2Jgone\\"}"); _exit(0);',
        "crashed: ?[2Jgone"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORGERIES)
def test_what_a_kernel_writes_decides_nothing(name: str, rig: Rig) -> None:
    body, expected = FORGERIES[name]
    candidate = hostile(body, FORGED)
    assert scan(candidate)
    assert rig.check(candidate).startswith(expected)


TIMES = {
    "below the roofline": ('"time_us": 0.001, "comm_sms": 0', "rejected: "),
    "not a number": ('"time_us": NaN', "crashed: "),
    "negative": ('"time_us": -5', "crashed: "),
    "a text": ('"time_us": "fast"', "crashed: "),
    "without work": ('"time_us": 14.0, "comm_sms": 0', "rejected: "),
}
USAGE = (
    '"ranks": [{"finished_us": 1, "last_mma_us": 0, "tensor_busy_us": 0, "hbm_busy_us": 0, '
    '"l2_busy_us": 0, "link_out_busy_us": 0, "link_in_busy_us": 0, "flops": 0, "l2_hits": 0, '
    '"l2_misses": 0, "waited_us": {}}]'
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TIMES)
def test_forged_times(name: str, rig: Rig) -> None:
    """Impossible times do not pass. Possible ones need the engine's own figures: see the rules."""
    fields, expected = TIMES[name]
    report = f'{{"outcome": "finished", {fields}, {USAGE}}}'.replace('"', '\\"')
    assert rig.bench(hostile(f'forge("{report}"); _exit(0);', FORGED)).startswith(expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", ["for (;;) fork();", "for (;;) pause();", "for (;;) if (fork() == 0) setsid();"]
)
def test_what_never_ends(body: str, rig: Rig, judge_cache: Path) -> None:
    assert rig.check(hostile(body)).startswith("timeout: ")
    assert gone(str(judge_cache))


BUILDS = {
    "a file of the machine": ("#include </etc/passwd>\n", "passwd"),
    "its own environment": ("#include </proc/self/environ>\n", "include"),
    "a device": ('asm(".incbin \\"/dev/zero\\"");\n', ""),
    "itself": ('#include "kernel.cu"\n', "nested"),
    "endless templates": (
        "template <int N> struct t { using type = typename t<N + 1>::type; };\n"
        "using x = t<0>::type;\n", "depth"),
    "endless constants": (
        "constexpr int f() { int n = 0; for (;;) ++n; return n; }\nconstexpr int x = f();\n", ""),
    "a huge object": ("char big[1u << 30] = {1};\n", ""),
    "a flood of messages": (
        "".join(f"#warning {'x' * 200} {i}\n" for i in range(3000)) + "#error end\n", ""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", BUILDS)
def test_hostile_compilation(name: str, rig: Rig, judge_cache: Path) -> None:
    source, words = BUILDS[name]
    candidate = Candidate("pk", {"kernel.cu": source + shipped_kernel("alltoall").source})
    with pytest.raises(StageFailed) as failed:
        build(rig.compiler, candidate)
    assert failed.value.status == "build_failed"
    evidence = str(failed.value.evidence)
    assert words in evidence
    assert "root:" not in evidence
    assert str(judge_cache) not in evidence
    assert gone(str(judge_cache))


def test_a_listener_of_the_host_is_out_of_reach(rig: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        body = f"""
            sockaddr_in to{{}}; to.sin_family = AF_INET; to.sin_port = htons({port});
            to.sin_addr.s_addr = htonl(0x7f000001);
            int s = socket(AF_INET, SOCK_STREAM, 0);
            if (connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) std::abort();"""
        assert rig.check(hostile(body)) == "correct"
        with socket.create_connection(("127.0.0.1", port), 5):
            pass  # the control: from outside it answers


def test_another_process_of_the_host_is_out_of_reach(rig: Rig) -> None:
    with subprocess.Popen(["sleep", "600"]) as victim:
        try:
            body = f"if (kill({victim.pid}, SIGKILL) == 0) std::abort();"
            assert rig.check(hostile(body)) == "correct"
            assert victim.poll() is None
            os.kill(victim.pid, 0)
        finally:
            victim.kill()
