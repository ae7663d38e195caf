"""The part of the conformance list that only isolating executors can pass."""

import os
import sys
from pathlib import Path

from pk_runtime.execution import Executor
from tests.sandbox.conformance import MIB, SURVIVOR, Case, gone, run

ISOLATED: list[Case] = []


def isolated(case: Case) -> Case:
    """Registers a case for executors that isolate."""
    ISOLATED.append(case)
    return case


def attempt(action: str, imports: str = "os, socket") -> str:
    """A program that prints whether an action is refused."""
    return (
        f"import {imports}\ntry:\n    {action}\n    print('allowed')\n"
        "except OSError: print('denied')"
    )


@isolated
def writing_outside(executor: Executor, folder: Path) -> None:
    inside = ("here", "/tmp/here", "/dev/shm/here", str(folder / "there"))
    for path in inside:
        assert run(executor, folder, attempt(f"open({path!r}, 'w')")).stdout == b"allowed\n"
    for path in (
        "/here",
        "/usr/here",
        "/etc/here",
        "/dev/here",
        "/proc/here",
    ):
        assert run(executor, folder, attempt(f"open({path!r}, 'w')")).stdout == b"denied\n"


@isolated
def read_only_paths_cannot_be_written(executor: Executor, folder: Path) -> None:
    work, given = folder / "work", folder / "given"
    work.mkdir()
    given.mkdir(mode=0o777)
    given.chmod(0o777)
    (given / "file").write_text("in")
    (given / "file").chmod(0o666)
    for path in (given / "file", given / "new"):
        done = run(executor, work, attempt(f"open({str(path)!r}, 'a')"), read_only=(given,))
        assert done.stdout == b"denied\n"
    assert run(executor, work, attempt("open('new', 'a')")).stdout == b"allowed\n"


@isolated
def a_read_only_path_may_be_a_link_below_a_system_folder(executor: Executor, folder: Path) -> None:
    """As /usr/local/cuda is: a link to a folder that the sandbox shows already."""
    links = (
        path for top in ("/usr/local", "/usr/lib", "/usr/share") for path in Path(top).iterdir()
    )
    link = next(path for path in links if path.is_symlink() and path.is_dir())
    listed = f"import os; print(len(os.listdir({str(link)!r})))"
    done = run(executor, folder, listed, read_only=(link,))
    assert done.stdout == f"{len(os.listdir(link))}\n".encode(), done.stderr


@isolated
def the_rest_of_the_machine_is_not_there(executor: Executor, folder: Path) -> None:
    work, secret = folder / "work", folder / "secret"
    work.mkdir()
    secret.write_text("key")
    secret.chmod(0o644)
    elsewhere = ("/root", "/home", "/var", "/sys")
    # The way to the interpreter is there when it lies below one of them, and nothing beside it.
    closed = [path for path in elsewhere if not sys.prefix.startswith(f"{path}/")]
    for path in (str(secret), "/etc/passwd", "/etc/shadow", *closed):
        assert run(executor, work, attempt(f"os.listdir({path!r})")).stdout == b"denied\n"
    assert run(executor, work, attempt("os.listdir('/usr/bin')")).stdout == b"allowed\n"


@isolated
def folders_that_only_the_owner_may_enter(executor: Executor, folder: Path) -> None:
    home = folder / "home"
    work, given = home / "work", home / "given"
    work.mkdir(parents=True)
    given.mkdir()
    (given / "file").write_text("in")
    (given / "file").chmod(0o600)
    for private in (given, work, home):
        private.chmod(0o700)
    source = f"print(open({str(given / 'file')!r}).read()); open('out', 'w')"
    assert run(executor, work, source, read_only=(given,)).stdout == b"in\n"
    assert (work / "out").exists()


@isolated
def links_do_not_come_back(executor: Executor, folder: Path) -> None:
    source = """
import os
os.symlink("/etc/passwd", "link"); os.symlink("/etc", "folder"); os.mkfifo("pipe")
open("real", "w").write("x"); os.link("real", "twice")
os.symlink("../../../escape", "up"); os.mkdir("sub"); os.symlink("/", "sub/root")
os.remove("given"); os.symlink("/etc/hostname", "given")
open("plain", "w").write("y")
"""
    (folder / "given").write_text("in")
    assert run(executor, folder, source).ok
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    assert left == {"plain", "sub"}
    assert (folder / "plain").read_text() == "y"


@isolated
def special_modes_do_not_come_back(executor: Executor, folder: Path) -> None:
    source = "import os; open('s', 'w'); os.chmod('s', 0o6777); os.mkdir('d'); os.chmod('d', 0)"
    assert run(executor, folder, source).ok
    assert (folder / "s").stat().st_mode & 0o7022 == 0
    assert os.listdir(folder / "d") == []


@isolated
def total_disk(executor: Executor, folder: Path) -> None:
    fill = """
import os, sys
for i in range(40):
    with open(os.path.join(sys.argv[1], str(i)), "wb") as file: file.write(b"x" * (1 << 20))
"""
    assert run(executor, folder, fill, ".", file=64 * MIB).ok
    for path in folder.iterdir():
        path.unlink()
    for where in (".", "/tmp", "/dev/shm"):
        assert not run(executor, folder, fill, where, file=16 * MIB).ok
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 17 * MIB


@isolated
def sparse_files_do_not_fill_the_host(executor: Executor, folder: Path) -> None:
    source = "for i in range(100): open(str(i), 'wb').truncate(8 << 20)"
    assert run(executor, folder, source, file=16 * MIB).ok
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 17 * MIB


@isolated
def the_number_of_files(executor: Executor, folder: Path) -> None:
    source = "import sys\nfor i in range(int(sys.argv[1])): open(f'/tmp/{i}', 'w').close()"
    assert run(executor, folder, source, "1000").ok
    assert not run(executor, folder, source, "200000").ok


@isolated
def processes(executor: Executor, folder: Path) -> None:
    source = """
import os, sys, time
born = 0
try:
    while born < int(sys.argv[1]):
        if os.fork() == 0: time.sleep(600)
        born += 1
except OSError: pass
print(born)
"""
    assert run(executor, folder, source, "4").stdout == b"4\n"
    assert int(run(executor, folder, source, "500", processes=24).stdout) < 24


@isolated
def threads(executor: Executor, folder: Path) -> None:
    source = """
import threading, time
born = 0
try:
    while born < 200:
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start(); born += 1
except RuntimeError: pass
print(born, flush=True)
import os; os._exit(0)
"""
    assert 2 < int(run(executor, folder, source, processes=24).stdout) < 24


@isolated
def memory_is_reported(executor: Executor, folder: Path) -> None:
    source = "x = b'x' * (1 << 30)"
    done = run(executor, folder, source, memory=128 * MIB)
    assert done.exceeded == "memory" or b"MemoryError" in done.stderr


@isolated
def memory_in_files_is_limited(executor: Executor, folder: Path) -> None:
    source = "import os, sys; os.write(os.memfd_create('m'), b'x' * int(sys.argv[1])); print('ok')"
    assert run(executor, folder, source, str(8 * MIB)).stdout == b"ok\n"
    assert not run(executor, folder, source, str(512 * MIB), memory=128 * MIB, file=256 * MIB).ok


@isolated
def no_user_id_but_its_own(executor: Executor, folder: Path) -> None:
    source = "import os; print(os.getuid(), os.getgid(), os.geteuid())"
    assert run(executor, folder, source).stdout == b"65534 65534 65534\n"
    assert run(executor, folder, attempt("os.setuid(0)")).stdout == b"denied\n"
    assert run(executor, folder, attempt("os.setuid(65534)")).stdout == b"allowed\n"


@isolated
def the_network(executor: Executor, folder: Path) -> None:
    source = """
import os
print(sorted(os.listdir("/proc/self/net")) != [], open("/proc/net/dev").read().count(":"))
"""
    assert run(executor, folder, source).stdout == b"True 1\n"
    connect = "socket.create_connection(('192.0.2.1', 80), 2)"
    assert run(executor, folder, attempt(connect)).stdout == b"denied\n"
    udp = "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    assert run(executor, folder, attempt(udp)).stdout == b"denied\n"
    own = "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname(), 2)"
    assert run(executor, folder, attempt(own)).stdout == b"allowed\n"


@isolated
def sockets_that_leave_a_namespace(executor: Executor, folder: Path) -> None:
    for family in (40, 38, 17, 31):  # vsock, alg, packet, bluetooth
        denied = attempt(f"socket.socket({family}, socket.SOCK_STREAM)")
        assert run(executor, folder, denied).stdout == b"denied\n"
    for name in ("UNIX", "INET", "INET6"):
        allowed = attempt(f"socket.socket(socket.AF_{name}, socket.SOCK_STREAM)")
        assert run(executor, folder, allowed).stdout == b"allowed\n"


@isolated
def other_processes(executor: Executor, folder: Path) -> None:
    seen = run(
        executor, folder, "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))"
    )
    assert int(seen.stdout) <= 4
    assert run(executor, folder, attempt("os.kill(-1, 9)")).stdout == b"denied\n"
    assert run(executor, folder, attempt("os.kill(os.getpid(), 0)")).stdout == b"allowed\n"


@isolated
def the_first_process_cannot_be_touched(executor: Executor, folder: Path) -> None:
    """It tells how the command ended: who could make it fail could blame the judge."""
    for action in (
        "resource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
        "os.kill(1, 9); raise OSError",  # taken, and without effect
        "os.kill(1, 2); raise OSError",
        "open('/proc/1/mem', 'rb').read(1)",
        "open('/proc/sys/kernel/core_pattern', 'w').write('x')",
        "open('/proc/sys/user/max_user_namespaces', 'w').write('1')",
        "open('/proc/sysrq-trigger', 'w').write('h')",
    ):
        done = run(executor, folder, attempt(action, "os, resource"))
        assert (done.stdout, done.exit_code) == (b"denied\n", 0), action
    own = "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))"
    assert run(executor, folder, attempt(own, "os, resource")).stdout == b"allowed\n"


@isolated
def no_secret_in_any_environment(executor: Executor, folder: Path) -> None:
    source = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try: print(pid, open(f"/proc/{pid}/environ", "rb").read())
    except OSError: pass
"""
    done = run(executor, folder, source, env={"OWN": "visible"})
    text = done.stdout.decode()
    assert "visible" in text
    for name in ("PATH=/", "HOME="):  # what every process of the judge has
        others = [line for line in text.splitlines() if "visible" not in line]
        assert not any(name in line for line in others)


@isolated
def no_descriptor_but_the_three_streams(executor: Executor, folder: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        done = run(executor, folder, "import os; print(sorted(os.listdir('/proc/self/fd')))")
    finally:
        os.close(reader)
        os.close(writer)
    assert done.stdout == b"['0', '1', '2', '3']\n"  # the last is the listing itself


@isolated
def system_calls(executor: Executor, folder: Path) -> None:
    source = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
result = libc.syscall(int(sys.argv[1]), *map(int, sys.argv[2:]))
print("denied" if result < 0 and ctypes.get_errno() == 1 else "allowed")
"""
    denied = {"ptrace": 101, "process_vm_readv": 310, "keyctl": 250, "bpf": 321, "unshare": 272,
              "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "mount": 165,
              "pivot_root": 155, "setns": 308, "kexec_load": 246, "open_tree": 428,
              "pidfd_getfd": 438, "kcmp": 312}  # fmt: skip
    for name, number in denied.items():
        done = run(executor, folder, source, str(number), "0", "0", "0", "0", "0")
        assert done.stdout == b"denied\n", name
    assert run(executor, folder, source, "39").stdout == b"allowed\n"


@isolated
def new_namespaces_by_clone(executor: Executor, folder: Path) -> None:
    source = """
import ctypes, os, sys
pid = ctypes.CDLL(None).syscall(56, int(sys.argv[1]) | 17, 0, 0, 0, 0)
if pid == 0: os._exit(0)
print("denied" if pid < 0 else "allowed")
"""
    for flag in (0x10000000, 0x40000000, 0x20000, 0x20000000):
        assert run(executor, folder, source, str(flag)).stdout == b"denied\n"
    assert run(executor, folder, source, "0").stdout == b"allowed\n"


@isolated
def privileges(executor: Executor, folder: Path) -> None:
    source = "print([l.split()[1] for l in open('/proc/self/status') if l[:6] in "
    source += "('CapEff', 'CapBnd', 'CapPrm', 'NoNewP')])"
    done = run(executor, folder, source)
    assert done.stdout.decode().strip() == str(["0" * 16, "0" * 16, "0" * 16, "1"])


@isolated
def no_core_dumps(executor: Executor, folder: Path) -> None:
    source = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"
    assert run(executor, folder, source).stdout == b"(0, 0)\n"


@isolated
def a_fresh_place_each_time(executor: Executor, folder: Path) -> None:
    source = "import os; print(os.path.exists('/tmp/left')); open('/tmp/left', 'w')"
    for _ in range(2):
        assert run(executor, folder, source).stdout == b"False\n"


@isolated
def terminal_and_session_are_its_own(executor: Executor, folder: Path) -> None:
    assert run(executor, folder, attempt("os.open('/dev/tty', os.O_RDWR)")).stdout == b"denied\n"
    assert run(executor, folder, "import os; print(os.getsid(0) > 0)").stdout == b"True\n"


@isolated
def detached_children_die_too(executor: Executor, folder: Path) -> None:
    for name, parent in (("ends", "time.sleep(0.3)"), ("late", "time.sleep(600)")):
        marker = f"marker-{folder.name}-detached-{name}"
        detach = "os.setsid()\n    if os.fork(): os._exit(0)"
        done = run(executor, folder, SURVIVOR.format(detach=detach, parent=parent), marker,
                   wall_s=1.5)  # fmt: skip
        assert done.stdout == b"born\n"
        assert gone(marker)


@isolated
def a_child_that_keeps_the_output_open_holds_up_nobody(executor: Executor, folder: Path) -> None:
    source = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(600)"
    assert run(executor, folder, source, wall_s=30).wall_s < 20
