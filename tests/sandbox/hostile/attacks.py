"""What a hostile kernel may try when it runs, each with the verdict that it must get.

Each is C++ that runs before main() of a right kernel. All are compiled into one program that
reads which of them is meant. A body that finds an open door ends in abort(), which is "crashed",
so `correct` says that the attack came to nothing.
"""

from dataclasses import dataclass

HEADERS = "".join(
    f"#include <{name}>\n"
    for name in ("cerrno", "csignal", "cstdio", "cstdlib", "cstring", "string", "system_error",
                 "thread", "vector", "dirent.h", "fcntl.h", "linux/limits.h", "netinet/in.h",
                 "sys/mman.h", "sys/mount.h", "sys/prctl.h", "sys/resource.h", "sys/socket.h",
                 "sys/stat.h", "sys/syscall.h", "sys/uio.h", "sys/un.h", "sys/wait.h", "unistd.h")
)  # fmt: skip
COMMON = r"""
namespace {
void forge(const char* report) {
  std::FILE* file = std::fopen("report.json", "w");
  std::fputs(report, file);
  std::fclose(file);
}
void must_fail(long result) { if (result >= 0) std::abort(); }
void fill(const char* where, long bytes) {
  static char block[1 << 20];
  auto old = std::signal(SIGXFSZ, SIG_IGN);
  int file = open(where, O_CREAT | O_WRONLY, 0644);
  for (long i = 0; i < bytes >> 20 && write(file, block, sizeof block) > 0; ++i) {}
  close(file);
  std::signal(SIGXFSZ, old);
}
sockaddr_in address(unsigned host, int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(host);
  return to;
}
void forge_success() {
  forge("{\"outcome\": \"explored\", \"schedules_run\": 4, \"redundant\": 0, "
        "\"complete\": false, \"steps\": 9, \"stopped_by\": \"number\", "
        "\"last_schedule\": \"eager\", \"outputs\": [\"eager\"], "
        "\"last_report\": {\"outcome\": \"finished\"}}");
}
std::string out(int launch, int rank) {
  return "out0." + std::to_string(launch) + "." + std::to_string(rank) + ".y.bin";
}
int sink_deeper(volatile char* above) {
  volatile char here[4096];
  here[0] = *above;
  return sink_deeper(here) + here[0];
}
}
"""


@dataclass(frozen=True)
class Attack:
    """One body, the start of the verdict it must get, and the limits that it is tried under."""

    body: str
    expected: str = "correct"
    wall_s: float = 30.0
    memory: int = 1 << 30
    file: int = 64 << 20


_NO_REPORT = "crashed: the program ended with "
_OVER_MEMORY = "crashed: stopped for exceeding its memory limit"
_OVER_OUTPUT = "crashed: stopped for exceeding its output limit"

HOLDS = {
    "nothing": "std::vector<int>(3).clear();",  # the positive control
    "reads every environment": r"""
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
    "looks for open descriptors": """
        for (int fd = 3; fd < 1024; ++fd) if (fcntl(fd, F_GETFD) >= 0) std::abort();""",
    "writes outside": """
        for (const char* path : {"/x", "/usr/x", "/etc/x", "/dev/x", "/proc/x", "/sys/x"})
          must_fail(open(path, O_CREAT | O_WRONLY, 0644));""",
    "writes to its own program": """
        char self[PATH_MAX] = {}; must_fail(open("/proc/self/exe", O_WRONLY));
        if (readlink("/proc/self/exe", self, sizeof self - 1) > 0) {
          must_fail(open(self, O_WRONLY)); must_fail(unlink(self));
          must_fail(chmod(self, 0777)); }""",
    "calls out": """
        for (int kind : {SOCK_STREAM, SOCK_DGRAM})
          for (unsigned host : {0xc0000201u, 0x01010101u, 0xa9fea9feu}) {
            sockaddr_in to = address(host, 53);
            int s = socket(AF_INET, kind, 0);
            must_fail(connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to)); }""",
    "leaves the network's namespace": """
        for (int family : {40, 38, 17, 31, 15, 21}) must_fail(socket(family, SOCK_STREAM, 0));""",
    "kills everything it sees": "kill(-1, SIGKILL); kill(1, SIGKILL); kill(getppid(), SIGTERM);",
    "stops its parent": "kill(getppid(), SIGSTOP); kill(1, SIGSTOP);",
    "reads other memory": """
        char byte; iovec to{&byte, 1}, from{reinterpret_cast<void*>(0x400000), 1};
        for (int pid : {1, (int)getppid()}) if (pid > 0 && pid != getpid()) {
          must_fail(syscall(SYS_ptrace, 16, pid, 0, 0));
          must_fail(process_vm_readv(pid, &to, 1, &from, 1, 0));
          must_fail(process_vm_writev(pid, &to, 1, &from, 1, 0));
          std::string path = "/proc/" + std::to_string(pid) + "/mem";
          must_fail(open(path.c_str(), O_RDWR)); }""",
    "limits the first process": """
        rlimit none{0, 0}; must_fail(prlimit(1, RLIMIT_AS, &none, nullptr));
        must_fail(prlimit(1, RLIMIT_NOFILE, &none, nullptr));""",
    "raises its limits": """
        rlimit found; getrlimit(RLIMIT_FSIZE, &found); found.rlim_max += 1;
        must_fail(setrlimit(RLIMIT_FSIZE, &found));
        getrlimit(RLIMIT_CORE, &found); found.rlim_cur = found.rlim_max = 1 << 20;
        must_fail(setrlimit(RLIMIT_CORE, &found));""",
    "makes namespaces": """
        for (int flag : {0x10000000, 0x20000, 0x40000000, 0x20000000, 0x4000000})
          must_fail(syscall(SYS_unshare, flag));
        must_fail(syscall(SYS_clone, 0x10000000 | SIGCHLD, 0, 0, 0, 0));
        must_fail(syscall(SYS_clone3, nullptr, 0));""",
    "mounts": """
        must_fail(mount("tmpfs", "/tmp", "tmpfs", 0, nullptr)); must_fail(chroot("/tmp"));
        must_fail(mount("/", "/tmp", nullptr, MS_BIND, nullptr)); must_fail(umount("/usr"));
        must_fail(syscall(SYS_pivot_root, "/tmp", "/tmp"));""",
    "asks for kernel surface": """
        for (long number : {SYS_bpf, SYS_userfaultfd, SYS_io_uring_setup, SYS_perf_event_open,
                            SYS_keyctl, SYS_add_key, SYS_kexec_load, SYS_init_module, SYS_swapon})
          must_fail(syscall(number, 0, 0, 0, 0, 0));""",
    "sets the clock": """
        timespec never{}; must_fail(clock_settime(CLOCK_REALTIME, &never));
        must_fail(sethostname("x", 1));""",
    "writes kernel settings": """
        for (const char* path : {"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
                                 "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/hostname"})
          must_fail(open(path, O_WRONLY));""",
    "becomes another user": """
        must_fail(setuid(0)); must_fail(setgid(0)); must_fail(seteuid(0));
        if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1) std::abort();""",
    "leaves a survivor": """
        if (fork() == 0) { setsid(); std::signal(SIGTERM, SIG_IGN);
          if (fork() == 0) { close(0); for (;;) pause(); }
          _exit(0); }
        wait(nullptr);""",
    "leaves something for the next run": """
        for (const char* name : {"/tmp/left", "/dev/shm/left", "sitecustomize.py", "conftest.py",
                                 "evil.pth", ".bashrc", "LD_PRELOAD.so"}) {
          if (access(name, F_OK) == 0) std::abort();
          fill(name, 1 << 20); }""",
    "prints a verdict": 'std::puts("PASS correct {\\"status\\": \\"correct\\"}");',
    "closes everything": "for (int fd = 0; fd < 1024; ++fd) close(fd);",
    "fills the disk": """
        fill("/tmp/fill", 1l << 32); fill("/dev/shm/fill", 1l << 32);
        unlink("/tmp/fill"); unlink("/dev/shm/fill");""",
    "makes files without end": """
        int made = 0;
        for (; made < 300000; ++made) {
          std::string name = "/tmp/" + std::to_string(made);
          int file = open(name.c_str(), O_CREAT | O_WRONLY, 0600);
          if (file < 0) break;
          close(file); }
        if (made == 300000 || made < 100) std::abort();
        for (int i = 0; i < made; ++i) unlink(("/tmp/" + std::to_string(i)).c_str());""",
    "makes threads without end": """
        std::vector<std::thread> all;
        try {
          for (int i = 0; i < 3000; ++i) all.emplace_back([] { usleep(200000); });
          std::abort(); }
        catch (const std::system_error&) {}
        if (all.size() < 2) std::abort();
        for (auto& each : all) each.join();""",
    "makes processes without end": """
        int born = 0;
        for (; born < 3000; ++born) { pid_t child = fork(); if (child < 0) break;
          if (child == 0) for (;;) pause(); }
        if (born == 3000 || born < 2) std::abort();
        kill(-1, SIGKILL); while (wait(nullptr) > 0) {}""",
    "makes odd names": r"""
        std::string longest(255, 'n'); close(open(longest.c_str(), O_CREAT | O_WRONLY, 0644));
        for (const char* name : {"a\nb", "\xff\xfe", "-rf", " ", "a\\..\\b", "\033[2J"})
          close(open(name, O_CREAT | O_WRONLY, 0644));
        for (int i = 0; i < 40; ++i) { mkdir("deep", 0755); if (chdir("deep") < 0) std::abort(); }
        for (int i = 0; i < 40; ++i) if (chdir("..") < 0) std::abort();
        symlink("/etc/passwd", "link"); mkfifo("pipe", 0666); mkdir("closed", 0);""",
}  # fmt: skip


def _late(body: str) -> Attack:
    return Attack(body, "timeout: ", wall_s=1.5)


ENDS = {
    "claims the end of another kind of run": Attack(
        'forge("{\\"outcome\\": \\"finished\\"}"); _exit(0);',
        "crashed: the report is of another kind of run"),
    "claims success": Attack('forge_success(); _exit(0);',
                             "crashed: the report is unusable"),
    "hands back its inputs": Attack("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank) {
          char from[64]; std::snprintf(from, 64, "in.%d.%d.x.bin", launch, rank);
          rename(from, out(launch, rank).c_str()); }
        forge_success(); _exit(0);""", "wrong_output: y on"),
    "links to other files": Attack("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank)
          symlink("/proc/self/exe", out(launch, rank).c_str());
        forge_success(); _exit(0);""", "crashed: the report is unusable"),
    "pipes for outputs": Attack("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank)
          mkfifo(out(launch, rank).c_str(), 0666);
        forge_success(); _exit(0);""", "crashed: the report is unusable"),
    "folders for outputs": Attack("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank)
          mkdir(out(launch, rank).c_str(), 0777);
        forge_success(); _exit(0);""", "crashed: the report is unusable"),
    "outputs of another size": Attack("""
        for (int launch = 0; launch < 2; ++launch) for (int rank = 0; rank < 4; ++rank) {
          int file = open(out(launch, rank).c_str(), O_CREAT | O_WRONLY, 0644);
          ftruncate(file, 8 << 20); close(file); }
        forge_success(); _exit(0);""", "crashed: the report is unusable"),
    "an endless output": Attack("""
        int file = open(out(0, 0).c_str(), O_CREAT | O_WRONLY, 0644);
        for (;;) if (ftruncate(file, 1l << 40) < 0) _exit(9);""", _NO_REPORT),
    "a link for a report": Attack(
        'symlink("/dev/zero", "report.json"); _exit(0);', _NO_REPORT + "exit code 0"),
    "a report without end": Attack("""
        std::FILE* f = std::fopen("report.json", "w");
        for (int i = 0; i < 8000000; ++i) std::fputs("[", f); std::fclose(f); _exit(0);""",
        _NO_REPORT + "exit code 0"),
    "a deep report": Attack("""
        std::FILE* f = std::fopen("report.json", "w");
        for (int i = 0; i < 100000; ++i) std::fputs("[", f); std::fclose(f); _exit(0);""",
        _NO_REPORT + "exit code 0"),
    "a report of wrong types": Attack(
        'forge("{\\"outcome\\": [1], \\"summary\\": \\"x\\"}"); _exit(0);', "crashed: "),
    "blames the judge": Attack(
        'forge("{\\"outcome\\": \\"infra_error\\"}"); _exit(0);', "crashed: "),
    "a report and then a crash": Attack(
        'forge("{\\"outcome\\": \\"finished\\"}"); std::abort();', _NO_REPORT + "signal 6"),
    "ends the terminal's text": Attack(
        'forge("{\\"outcome\\": \\"fault\\", \\"summary\\": \\"\\\\u001b[2Jgone\\"}"); _exit(0);',
        "crashed: ?[2Jgone"),
    "a silent end": Attack("_exit(0);", _NO_REPORT + "exit code 0"),
    "an exit code": Attack("_exit(77);", _NO_REPORT + "exit code 77"),
    "another program": Attack(
        'execl("/usr/bin/true", "true", nullptr);', _NO_REPORT + "exit code 0"),
    "kills itself": Attack("kill(getpid(), SIGKILL);", _NO_REPORT + "signal 9"),
    "closes its work folder": Attack('chmod(".", 0); _exit(0);', _NO_REPORT + "exit code 0"),
    "runs out of stack": Attack("char c = 1; sink_deeper(&c);", _NO_REPORT + "signal 11"),
    "floods its errors": Attack(
        'for (;;) std::fputs("yyyyyyyyyyyyyyyyyyyyyyyy\\n", stderr);', _OVER_OUTPUT),
    "one line without end": Attack("for (;;) std::fputc('x', stdout);", _OVER_OUTPUT),
    "a child that floods": Attack(
        "if (fork() == 0) { setsid(); for (;;) write(2, HEADING, sizeof HEADING); } "
        "for (;;) pause();",
        _OVER_OUTPUT),
    "a child keeps the streams open": Attack(
        "if (fork() == 0) { setsid(); for (;;) pause(); } _exit(5);", _NO_REPORT + "exit code 5"),
    "too much memory": Attack(
        "for (;;) std::memset(std::malloc(8 << 20), 1, 8 << 20);", _OVER_MEMORY, memory=128 << 20),
    "too much memory without a name": Attack(
        "int f = memfd_create(\"m\", 0); static char b[1 << 20]; for (;;) write(f, b, sizeof b);",
        _OVER_MEMORY, memory=128 << 20, file=1 << 30),
    "too much memory in files": Attack(
        'for (int i = 0; i < 9; ++i) fill(("/dev/shm/" + std::to_string(i)).c_str(), 64l << 20); '
        'for (int i = 0; i < 9; ++i) fill(std::to_string(i).c_str(), 64l << 20); for (;;) pause();',
        _OVER_MEMORY, memory=128 << 20, file=1 << 30),
    "too much memory in children": Attack(
        "for (int i = 0; i < 6; ++i) if (fork() == 0) { "
        "mmap(nullptr, 64 << 20, PROT_READ | PROT_WRITE, "
        "MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); for (;;) pause(); } "
        "for (;;) if (wait(nullptr) > 0) _exit(1);", _OVER_MEMORY, memory=128 << 20),
    "sleeps for ever": _late("for (;;) pause();"),
    "spins for ever": _late("for (volatile int i = 0;; i = i + 1) {}"),
    "stops itself": _late("raise(SIGSTOP); for (;;) pause();"),
    "is deaf": _late("for (int s = 1; s < 32; ++s) std::signal(s, SIG_IGN); for (;;) pause();"),
    "a fork bomb": _late("for (;;) fork();"),
    "a bomb of sessions": _late("for (;;) if (fork() == 0) setsid();"),
    "a chain of children": Attack("for (;;) if (fork() != 0) _exit(0); else setsid();", _NO_REPORT),
}  # fmt: skip

ATTACKS = {name: Attack(body) for name, body in HOLDS.items()} | ENDS

_USAGE = (
    '"ranks": [{"finished_us": 1, "last_mma_us": 0, "tensor_busy_us": 0, "hbm_busy_us": 0, '
    '"l2_busy_us": 0, "link_out_busy_us": 0, "link_in_busy_us": 0, "flops": 0, "l2_hits": 0, '
    '"l2_misses": 0, "waited_us": {}, "ended_us": 1, "mean_ended_us": 1, "mean_last_mma_us": 0}]'
)
_PATH = (
    '"launch_us": 0, "path": {"rank": 0, "compute_us": 0, "memory_us": 0, "synchronization_us": 0, '
    '"link_us": '
)


def _time(fields: str, expected: str) -> Attack:
    report = f'{{"outcome": "finished", {fields}, {_USAGE}}}'.replace('"', '\\"')
    return Attack(f'forge("{report}"); _exit(0);', expected)


# In the stage that times. Possible times need the engine's own figures: see the rules.
TIMES = {
    "nothing": Attack(HOLDS["nothing"]),
    "below the roofline": _time(f'{_PATH}0.001}}, "time_us": 0.001, "comm_sms": 0', "rejected: "),
    "not a number": _time('"time_us": NaN', "crashed: "),
    "negative": _time('"time_us": -5', "crashed: "),
    "a text": _time('"time_us": "fast"', "crashed: "),
    "without work": _time(f'{_PATH}14.0}}, "time_us": 14.0, "comm_sms": 0', "rejected: "),
}


def program(kernel: str) -> str:
    """The source of a kernel that runs what the file `attack` in its work folder names first."""
    bodies = [attack.body for attack in (*ATTACKS.values(), *TIMES.values())]
    cases = "\n".join(f"case {n}: {{ {body} }} break;" for n, body in enumerate(bodies))
    heading = 'static const char HEADING[] = "yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy";\n'
    return f"""{HEADERS}{heading}{COMMON}
namespace {{
struct evil {{
  evil() {{
    std::FILE* file = std::fopen("attack", "r");
    int meant = 0;
    if (file == nullptr || std::fscanf(file, "%d", &meant) != 1) std::abort();
    std::fclose(file);
    switch (meant) {{ {cases} default: std::abort(); }}
  }}
}} now;
}}
{kernel}"""


def number(name: str, *, timing: bool = False) -> int:
    """What names an attack to the program."""
    return len(ATTACKS) + list(TIMES).index(name) if timing else list(ATTACKS).index(name)
