"""Ranks that meet in a folder: threads here, with the sockets that processes use."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from pk_runtime.gpu.channel import connect
from pk_runtime.gpu.rendezvous import Answer, Rendezvous, RendezvousError, new_run_folder

T = TypeVar("T")
LONG, SOON = 20.0, 0.3


def on_ranks(world: int, action: Callable[[int], T]) -> list[T]:
    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(action, range(world)))


def met(world: int, deadline_s: float = LONG) -> list[Rendezvous]:
    folder = new_run_folder()
    ranks = on_ranks(world, lambda r: Rendezvous.join(folder, r, world, deadline_s=deadline_s))
    assert not folder.exists()
    return ranks


def close(ranks: list[Rendezvous]) -> None:
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("world", [1, 2, 5])
def test_everybody_hears_everybody_in_rank_order(world: int) -> None:
    ranks = met(world)
    for turn in range(3):
        said = on_ranks(world, lambda r, t=turn: ranks[r].exchange("say", {"n": 10 * r + t}))  # type: ignore[misc]
        for answers in said:
            assert [a.body["n"] for a in answers] == [10 * r + turn for r in range(world)]
    on_ranks(world, lambda r: ranks[r].barrier())
    close(ranks)


def test_each_pair_passes_its_file() -> None:
    ranks = met(3)

    def swap(rank: int) -> list[Answer]:
        files = {peer: os.memfd_create("x") for peer in range(3) if peer != rank}
        for peer, descriptor in files.items():
            os.write(descriptor, f"{rank} to {peer}".encode())
        answers = ranks[rank].exchange("files", {}, files, expected=1)
        for descriptor in files.values():
            os.close(descriptor)
        return answers

    for rank, answers in enumerate(on_ranks(3, swap)):
        assert answers[rank].files == ()
        for peer in {0, 1, 2} - {rank}:
            (descriptor,) = answers[peer].files
            assert os.pread(descriptor, 100, 0) == f"{peer} to {rank}".encode()
            os.close(descriptor)
    close(ranks)


def test_a_barrier_holds_until_the_last_one_comes() -> None:
    ranks = met(2)
    passed = threading.Event()

    def first() -> None:
        ranks[0].barrier()
        passed.set()

    thread = threading.Thread(target=first)
    thread.start()
    assert not passed.wait(SOON)
    ranks[1].barrier()
    assert passed.wait(LONG)
    thread.join(LONG)
    close(ranks)


def test_ranks_that_do_different_things_are_told_so() -> None:
    ranks = met(2)

    def differ(rank: int) -> str:
        with pytest.raises(RendezvousError) as caught:
            ranks[rank].exchange(("allocate x", "a barrier")[rank], {})
        return str(caught.value)

    texts = on_ranks(2, differ)
    assert "rank 0 is at 'allocate x' (step 2) and rank 1 at 'a barrier'" in texts[0]
    assert "every rank must do the same" in texts[1]
    close(ranks)


def test_a_rank_that_is_missing_or_gone_is_named() -> None:
    folder = new_run_folder()

    def join(rank: int) -> str:
        with pytest.raises(RendezvousError) as caught:
            Rendezvous.join(folder, rank, 3, deadline_s=SOON)
        return str(caught.value)

    texts = on_ranks(2, join)
    assert any("ranks 2 did not come in time" in text for text in texts)
    assert not list(folder.iterdir())
    folder.rmdir()
    ranks = met(2, deadline_s=SOON)
    with pytest.raises(RendezvousError, match="rank 0 waits at 'a barrier' for rank 1"):
        ranks[0].barrier()
    ranks[0].close()
    with pytest.raises(RendezvousError, match=r"rank 1 (lost|waits .* for) rank 0"):
        ranks[1].exchange("more", {})
    ranks[1].close()


def test_a_rank_given_twice_is_refused() -> None:
    folder = new_run_folder()

    def join() -> None:
        with pytest.raises(RendezvousError, match="did not come in time"):
            Rendezvous.join(folder, 0, 2, deadline_s=2 * SOON)

    first = threading.Thread(target=join)
    first.start()
    while not list(folder.iterdir()):
        pass
    with pytest.raises(RendezvousError, match="is it given twice"):
        Rendezvous.join(folder, 0, 2, deadline_s=LONG)
    first.join(LONG)
    folder.rmdir()


def test_a_stranger_is_refused() -> None:
    folder = new_run_folder()

    def stranger() -> None:
        channel = connect(folder / "0.socket", timeout_s=LONG)
        channel.send({"rank": "mine"}, timeout_s=LONG)
        channel.close()

    thread = threading.Thread(target=stranger)
    thread.start()
    with pytest.raises(RendezvousError, match="somebody came as rank 'mine'"):
        Rendezvous.join(folder, 0, 2, deadline_s=LONG)
    thread.join(LONG)
    folder.rmdir()


def test_only_a_private_folder_will_do(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with pytest.raises(RendezvousError, match="is not a private folder"):
        Rendezvous.join(shared, 0, 2, deadline_s=SOON)
    with pytest.raises(RendezvousError, match="are all ranks on one machine"):
        Rendezvous.join(tmp_path / "absent", 0, 2, deadline_s=SOON)
    link = tmp_path / "link"
    private = new_run_folder()
    link.symlink_to(private)
    with pytest.raises(RendezvousError, match="is not a private folder"):
        Rendezvous.join(link, 0, 2, deadline_s=SOON)
    private.rmdir()
    with pytest.raises(ValueError, match="rank 2 is not one of 2"):
        Rendezvous.join(shared, 2, 2, deadline_s=SOON)
