"""The Docker back end beyond the conformance list: engine, image, leftovers, what comes out."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from pk_runtime.execution import ExecutionError
from sandbox.isolation import (
    DockerExecutor,
    IsolationUnavailable,
    SandboxFault,
    backends,
    choose,
    look_at,
    seccomp,
)
from sandbox.isolation.container import CHUNK, FILE, FOLDER, KEPT
from sandbox.isolation.engine import Engine
from sandbox.isolation.exchange import Frames, Inbox, frame, outgoing
from tests.docker_engine import call
from tests.sandbox.conformance import run


@pytest.mark.slow
def test_it_is_the_strongest_and_says_what_it_enforces(docker_host: str) -> None:
    executor = choose(docker_host=docker_host)
    assert executor.name == "docker"
    report = executor.capabilities().to_dict()
    assert report["isolated"] is True
    assert "not enforced" not in report.values()
    assert "runc" in str(report["backend"])


@pytest.mark.slow
def test_a_runtime_that_the_engine_has_not_is_passed_over(docker_host: str) -> None:
    look = look_at(backends("docker", docker_host)["runsc"])
    assert look.executor is None
    assert "runsc" in look.reason
    assert "daemon.json" in look.fix


def test_each_choice_allows_only_what_it_names() -> None:
    assert list(backends()) == ["runsc", "docker", "bubblewrap", "namespaces"]
    assert list(backends("docker")) == ["runsc", "docker"]
    assert list(backends("bubblewrap")) == ["bubblewrap"]
    assert list(backends("namespaces")) == ["namespaces"]


def test_without_an_engine_a_forced_choice_is_refused() -> None:
    with pytest.raises(IsolationUnavailable, match="no Docker engine at") as refused:
        choose(choice="docker")
    assert "PKFORGE_DOCKER_HOST" in refused.value.fix
    assert "--no-isolation" in refused.value.fix


def test_without_the_command_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(IsolationUnavailable, match="no docker command") as refused:
        DockerExecutor()
    assert "apt-get install docker.io" in refused.value.fix


@pytest.mark.slow
def test_somebody_elses_image_is_not_used(docker: DockerExecutor) -> None:
    engine = docker.engine
    name = engine.image()
    try:
        call(engine.host, "image", "rm", name)
        engine.call("import", "-", name, data=(b"\0" * 10240))
        with pytest.raises(IsolationUnavailable, match="not pkforge's") as refused:
            engine.image()
        assert name in refused.value.fix
    finally:
        call(engine.host, "image", "rm", name)
    assert engine.image() == name


@pytest.mark.slow
def test_only_containers_of_dead_judges_are_swept(docker: DockerExecutor) -> None:
    engine = docker.engine
    labels = engine.labels()
    dead = [part.replace(f"={os.getpid()}.", "=1.1") for part in labels]
    other_machine = [*dead[:2], "--label", "pkforge.machine=another"]
    created = {}
    for name, marks in (("alive", labels), ("dead", dead), ("elsewhere", other_machine)):
        created[name] = engine.new_name()
        engine.call("create", "--name", created[name], *marks, engine.image(), "/bin/true")
    engine.sweep()
    left = call(engine.host, "ps", "--all", "--format", "{{.Names}}").split()
    try:
        assert set(left) & set(created.values()) == {created["alive"], created["elsewhere"]}
    finally:
        for name in created.values():
            engine.remove(name)


@pytest.mark.slow
def test_the_container_is_made_as_documented(docker: DockerExecutor, folder: Path) -> None:
    """What the engine says of a running container, so that no option is lost on the way."""
    seen: dict[str, object] = {}

    class Spy(Engine):
        def remove(self, name: str) -> None:
            seen.update(json.loads(self.call("inspect", "--format", "{{json .}}", name)))
            super().remove(name)

    executor = DockerExecutor(docker.engine.host)
    executor.engine = Spy(docker.engine.host)
    assert run(executor, folder, "pass", memory=256 << 20, processes=24).ok
    host, config = seen["HostConfig"], seen["Config"]
    assert isinstance(host, dict)
    assert isinstance(config, dict)
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == (
        "none",
        True,
        False,
    )
    assert (host["CapDrop"], host["CapAdd"], host["IpcMode"]) == (["ALL"], None, "private")
    assert host["PidsLimit"] == 25
    assert host["Memory"] == host["MemorySwap"] == (256 + 24) << 20
    assert host["LogConfig"]["Type"] == "none"
    assert host["Devices"] == []
    assert host["Binds"] is None
    assert all(mount["ReadOnly"] for mount in host["Mounts"])
    assert "no-new-privileges" in host["SecurityOpt"]
    [profile] = [o for o in host["SecurityOpt"] if o.startswith("seccomp=")]
    assert json.loads(profile.removeprefix("seccomp=")) == json.loads(seccomp.docker_profile())
    assert config["User"] == "65534:65534"
    assert all("PKFORGE" not in variable for variable in config["Env"] or [])
    docker_socket = docker.engine.host.removeprefix("unix://")
    assert docker_socket not in json.dumps(host["Mounts"])


@pytest.mark.slow
def test_a_work_folder_with_a_colon_is_refused(docker: DockerExecutor, folder: Path) -> None:
    odd = folder / "a:b"
    odd.mkdir()
    with pytest.raises(ExecutionError, match="colon"):
        run(docker, odd, "pass")
    fine = folder / 'a,"b c'
    fine.mkdir()
    (folder / "x,y=z").write_text("in")
    source = f"print(open({str(folder / 'x,y=z')!r}).read())"
    assert run(docker, fine, source, read_only=(folder / "x,y=z",)).stdout == b"in\n"


@pytest.mark.slow
def test_a_container_that_somebody_removes_is_no_verdict(
    docker: DockerExecutor, folder: Path
) -> None:
    class Vandal(Engine):
        def ran_out_of_memory(self, name: str) -> bool:
            return False

    executor = DockerExecutor(docker.engine.host)
    executor.engine = Vandal(docker.engine.host)
    source = "import time; open('started', 'w'); time.sleep(600)"

    def vandalise() -> None:
        name, deadline = "", time.monotonic() + 60
        while not name and time.monotonic() < deadline:
            name = call(docker.engine.host, "ps", "--quiet", "--filter", "status=running")
        call(docker.engine.host, "kill", name)

    thread = threading.Thread(target=vandalise)
    thread.start()
    try:
        with pytest.raises(SandboxFault, match="docker ended with code 137"):
            run(executor, folder, source)
    finally:
        thread.join(60)


# --- what comes out of a container ---------------------------------------------------------------


@pytest.fixture
def inbox(folder: Path) -> Inbox:
    (folder / "old").write_text("before")
    (folder / "kept").write_text("before")
    return Inbox(folder, room=100)


def test_a_folder_is_made_from_frames(inbox: Inbox, folder: Path) -> None:
    inbox.take(KEPT, b"kept")
    inbox.take(FOLDER, b"a")
    inbox.take(FILE, b"xa/program")
    inbox.take(CHUNK, b"one")
    inbox.take(CHUNK, b"two")
    inbox.take(FILE, b"-\xff")
    inbox.finish()
    inbox.close()
    assert (folder / "kept").read_text() == "before"
    assert not (folder / "old").exists()
    assert (folder / "a" / "program").read_text() == "onetwo"
    assert (folder / "a" / "program").stat().st_mode & 0o7777 == 0o755
    assert (folder / os.fsdecode(b"\xff")).stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize(
    "path",
    [b"..", b"../x", b"/etc/x", b"a//b", b"", b"a/../../x", b".", b"a\0b", b"x" * 256,
     b"/".join([b"d"] * 17)],
)  # fmt: skip
@pytest.mark.parametrize("kind", [FILE, FOLDER, KEPT])
def test_names_that_lead_elsewhere_are_refused(inbox: Inbox, kind: bytes, path: bytes) -> None:
    with pytest.raises(SandboxFault, match="impossible path"):
        inbox.take(kind, b"-" + path if kind == FILE else path)
    inbox.close()


def test_a_link_in_the_work_folder_is_not_followed(inbox: Inbox, folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    try:
        (folder / "link").symlink_to(outside)
        with pytest.raises(SandboxFault, match="no folder"):
            inbox.take(FILE, b"-link/file")
        inbox.take(FILE, b"-link")  # in its place
        inbox.take(CHUNK, b"x")
        inbox.finish()
        assert (folder / "link").read_text() == "x"
        assert not (folder / "link").is_symlink()
        assert list(outside.iterdir()) == []
    finally:
        inbox.close()
        outside.rmdir()


def test_no_more_is_taken_than_there_is_room_for(inbox: Inbox) -> None:
    inbox.take(FILE, b"-a")
    inbox.take(CHUNK, b"x" * 100)
    with pytest.raises(SandboxFault, match="more than its work folder"):
        inbox.take(CHUNK, b"x")
    inbox.close()


def test_content_without_a_file_is_refused(inbox: Inbox) -> None:
    with pytest.raises(SandboxFault):
        inbox.take(CHUNK, b"x")
    inbox.close()


def test_frames_may_come_in_any_pieces() -> None:
    sent = frame(FILE, b"-a") + frame(CHUNK, b"x" * 1000) + frame(KEPT)
    for size in (1, 3, 7, len(sent)):
        frames = Frames()
        pieces = (sent[at : at + size] for at in range(0, len(sent), size))
        got = [each for piece in pieces for each in frames.add(piece)]
        assert got == [(FILE, b"-a"), (CHUNK, b"x" * 1000), (KEPT, b"")]
    with pytest.raises(SandboxFault, match="no sandbox sends"):
        list(Frames().add(b"f\xff\xff\xff\xff"))


def test_a_work_folder_with_a_link_is_not_sent(folder: Path) -> None:
    (folder / "fine").write_text("x")
    assert b"fine" in b"".join(outgoing(folder))
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(SandboxFault, match="not a regular file"):
        list(outgoing(folder))


# --- the filter ----------------------------------------------------------------------------------


def test_dockers_profile_says_what_the_filter_says() -> None:
    profile = json.loads(seccomp.docker_profile())
    refused = {name for rule in profile["syscalls"] for name in rule["names"] if not rule["args"]}
    assert refused == {*seccomp.DENIED, "clone3"}
    flags = [rule["args"][0] for rule in profile["syscalls"] if rule["names"] == ["clone"]]
    assert sum(flag["value"] for flag in flags) == 0x7E020080
    assert all(flag["value"] == flag["valueTwo"] for flag in flags)
    families = [rule["args"][0] for rule in profile["syscalls"] if rule["names"] == ["socket"]]
    closed = {f["value"] for f in families if f["op"] == "SCMP_CMP_EQ"}
    assert closed == set(range(16)) - {1, 2, 10}
    assert [f["value"] for f in families if f["op"] == "SCMP_CMP_GT"] == [16]
