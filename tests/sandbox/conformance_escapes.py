"""Behaviours of executors that isolate: ways out of a sandbox, closed."""

import json
import os
import socket
from pathlib import Path

from pk_runtime.execution import Executor
from tests.sandbox.conformance import SURVIVOR, gone, isolated, refused, run


@isolated
def no_user_id_but_its_own(executor: Executor, folder: Path) -> None:
    source = "import os; print(os.getuid(), os.getgid(), os.geteuid())"
    assert run(executor, folder, source).stdout == b"65534 65534 65534\n"
    actions = {"root": "os.setuid(0)", "root's group": "os.setgid(0)", "own": "os.setuid(65534)"}
    assert refused(executor, folder, actions) == {"root", "root's group"}


@isolated
def the_network(executor: Executor, folder: Path) -> None:
    source = "print(open('/proc/net/dev').read().count(':'))"
    assert run(executor, folder, source).stdout == b"1\n"
    name = f"pkforge-{folder.name}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind("\0" + name)
        hidden.listen()
        port = server.getsockname()[1]
        actions = {
            "outside": "socket.create_connection(('192.0.2.1', 80), 2)",
            "outside, IPv6": "socket.create_connection(('2001:db8::1', 80), 2)",
            "a datagram": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
            "a name": "socket.getaddrinfo('example.org', 80)",
            "the host": f"socket.create_connection(('127.0.0.1', {port}), 2)",
            "the host's socket": f"socket.socket(socket.AF_UNIX).connect('\\0{name}')",
            "own": "s = socket.create_server(('127.0.0.1', 0)); "
            "socket.create_connection(s.getsockname(), 2)",
            "own socket": "s = socket.socket(socket.AF_UNIX); s.bind('\\0own'); s.listen(); "
            "socket.socket(socket.AF_UNIX).connect('\\0own')",
        }
        assert refused(executor, folder, actions) == actions.keys() - {"own", "own socket"}
        for listener in (server, hidden):  # the control: from here, both can be reached
            with socket.socket(listener.family) as client:
                client.connect(listener.getsockname())


@isolated
def sockets_that_leave_a_namespace(executor: Executor, folder: Path) -> None:
    leaving = {"vsock": 40, "alg": 38, "packet": 17, "bluetooth": 31, "none": 0, "last": 45}
    actions = {name: f"socket.socket({n}, socket.SOCK_STREAM)" for name, n in leaving.items()}
    for name in ("UNIX", "INET", "INET6"):
        actions[name] = f"socket.socket(socket.AF_{name}, socket.SOCK_STREAM)"
    actions["NETLINK"] = "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"
    assert refused(executor, folder, actions) == set(leaving)


@isolated
def other_processes(executor: Executor, folder: Path) -> None:
    source = "import os; print(len([p for p in os.listdir('/proc') if p.isdigit()]))"
    assert int(run(executor, folder, source).stdout) <= 4
    actions = {"all": "os.kill(-1, 9)", "own": "os.kill(os.getpid(), 0)"}
    assert refused(executor, folder, actions) == {"all"}


@isolated
def the_first_process_cannot_be_touched(executor: Executor, folder: Path) -> None:
    """It tells how the command ended: who could make it fail could blame the judge."""
    actions = {
        action: action
        for action in (
            "resource.prlimit(1, resource.RLIMIT_AS, (0, 0))",
            "os.kill(1, 9); raise OSError",  # taken, and without effect
            "os.kill(1, 2); raise OSError",
            "os.kill(1, 15); raise OSError",
            "os.kill(1, 19); raise OSError",
            "open('/proc/1/mem', 'rb')",  # opening is what must be refused, not reading at 0
            "open('/proc/1/task/1/mem', 'r+b')",
            "open('/proc/1/maps').read()",
            "open('/proc/sys/kernel/core_pattern', 'w').write('x')",
            "open('/proc/sys/user/max_user_namespaces', 'w').write('1')",
            "open('/proc/sysrq-trigger', 'w').write('h')",
        )
    }
    allowed = "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0))"
    assert refused(executor, folder, {**actions, allowed: allowed}) == set(actions)


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
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def refused(number):
    ctypes.set_errno(0)
    return libc.syscall(number, 0, 0, 0, 0, 0) < 0 and ctypes.get_errno() == 1
print(json.dumps([number for number in json.loads(sys.argv[1]) if refused(number)]))
"""
    denied = {"ptrace": 101, "process_vm_readv": 310, "keyctl": 250, "bpf": 321, "unshare": 272,
              "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "mount": 165,
              "pivot_root": 155, "setns": 308, "kexec_load": 246, "open_tree": 428,
              "pidfd_getfd": 438, "kcmp": 312, "open_by_handle_at": 304, "syslog": 103,
              "add_key": 248, "clock_settime": 227, "sethostname": 170}  # fmt: skip
    numbers = [*denied.values(), 39, 102, 228]  # getpid, getuid, clock_gettime
    done = run(executor, folder, source, json.dumps(numbers))
    assert json.loads(done.stdout) == list(denied.values())


@isolated
def new_namespaces_by_clone(executor: Executor, folder: Path) -> None:
    source = """
import ctypes, os, sys
for flag in (0x10000000, 0x40000000, 0x20000, 0x20000000, 0x2000000, 0x4000000, 0x8000000, 0):
    pid = ctypes.CDLL(None).syscall(56, flag | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    print("denied" if pid < 0 else "allowed", flush=True)
"""
    assert run(executor, folder, source).stdout == b"denied\n" * 7 + b"allowed\n"


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
    actions = {"terminal": "os.open('/dev/tty', os.O_RDWR)", "session": "os.getsid(0)"}
    assert refused(executor, folder, actions) == {"terminal"}


@isolated
def devices(executor: Executor, folder: Path) -> None:
    closed = ("/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vda")
    open_ = ("/dev/null", "/dev/zero", "/dev/urandom")
    actions = {path: f"os.open({path!r}, os.O_RDWR)" for path in (*closed, *open_)}
    actions["a new one"] = "os.mknod('node', 0o020666, os.makedev(1, 1))"
    assert refused(executor, folder, actions) == {*closed, "a new one"}


@isolated
def programs_of_another_user_give_no_rights(executor: Executor, folder: Path) -> None:
    source = """
import os, shutil, subprocess
shutil.copy("/usr/bin/id", "own"); os.chmod("own", 0o6755)
print(subprocess.run(["./own", "-u"], capture_output=True).stdout.decode().strip())
elevated = [p.path for p in os.scandir("/usr/bin") if p.is_file() and p.stat().st_mode & 0o4000]
print(len(elevated))
for path in elevated[:3]: subprocess.run([path, "--version"], timeout=5, capture_output=True)
print("NoNewPrivs:\t1" in open("/proc/self/status").read())
"""
    lines = run(executor, folder, source).stdout.decode().split()
    assert (lines[0], lines[-1]) == ("65534", "True")


@isolated
def limits_cannot_be_raised(executor: Executor, folder: Path) -> None:
    source = """
import resource
for name in ("CORE", "FSIZE", "NOFILE", "MSGQUEUE"):
    number = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(number)
    resource.setrlimit(number, (soft, hard))
    try: resource.setrlimit(number, (hard + 1, hard + 1)); print("raised", name)
    except (ValueError, OSError): print("kept", name)
"""
    done = run(executor, folder, source)
    assert done.stdout.split() == b"kept CORE kept FSIZE kept NOFILE kept MSGQUEUE".split()


@isolated
def open_files(executor: Executor, folder: Path) -> None:
    source = "import os, sys\nfor i in range(int(sys.argv[1])): os.dup(0)"
    assert run(executor, folder, source, "200").ok
    assert not run(executor, folder, source, "5000").ok


@isolated
def names_of_the_machine(executor: Executor, folder: Path) -> None:
    source = "import os; print(os.uname().nodename); print(os.uname().version)"
    assert run(executor, folder, source).stdout.split()[0] == b"sandbox"
    actions = {"rename": "socket.sethostname('x')", "clock": "time.clock_settime(0, 0)",
               "read the clock": "time.clock_gettime(0)"}  # fmt: skip
    assert refused(executor, folder, actions) == {"rename", "clock"}


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
