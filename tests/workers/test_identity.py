"""Names of lease owners: which of them are certainly dead."""

from __future__ import annotations

import os
import subprocess

import pytest

from workers.identity import fate_of, host, name_of, own_name


def test_this_process_is_alive() -> None:
    assert own_name() == name_of(os.getpid())
    assert own_name().startswith(f"{host()}:{os.getpid()}:")
    assert fate_of(own_name()) == "alive"


def test_a_process_is_dead_when_it_has_ended() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        name = name_of(process.pid)
        assert fate_of(name) == "alive"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        # A zombie: its parent has not fetched its exit code yet.
        assert fate_of(name) == "dead"
    assert fate_of(name) == "dead"


def test_a_later_process_with_the_same_number_is_not_the_owner() -> None:
    boot, namespace, ticks = own_name().rsplit(":", 1)[1].split(".")
    earlier = f"{host()}:{os.getpid()}:{boot}.{namespace}.{int(ticks) - 1}"
    assert fate_of(earlier) == "dead"


def test_a_process_from_before_the_last_boot_is_dead() -> None:
    _, namespace, ticks = own_name().rsplit(":", 1)[1].split(".")
    assert fate_of(f"{host()}:{os.getpid()}:0123456789ab.{namespace}.{ticks}") == "dead"


def test_what_cannot_be_seen_is_unknown() -> None:
    boot, _, ticks = own_name().rsplit(":", 1)[1].split(".")
    elsewhere = own_name().replace(host(), "another-host", 1)
    other_container = f"{host()}:{os.getpid()}:{boot}.1.{ticks}"
    for name in (elsewhere, other_container, "", "nonsense", f"{host()}:x:a.b.c"):
        assert fate_of(name) == "unknown"


def test_a_missing_process_has_no_name() -> None:
    with pytest.raises(OSError, match="No such file"):
        name_of(2**22 + 1)
