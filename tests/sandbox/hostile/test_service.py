"""While hostile programs run beside it, the service answers, and nothing of them is left."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.isolation import IsolatedExecutor
from store import Settings
from tests.api.serving import asgi
from tests.sandbox.conformance import MIB, gone, left_groups, run

# Each with how it must end: the limit it exceeds, or None for an end of its own.
HOSTILE = {
    "fork bomb": ("import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", "wall"),
    "memory hog": ("x = []\nwhile True: x.append(b'x' * (1 << 20))", "memory"),
    "flood": ("import os\nwhile True: os.write(2, b'x' * 65536)", "output"),
    "disk filler": ("f = open('/dev/shm/x', 'wb', 0)\nwhile f.write(b'x' * 65536): pass", None),
    "busy loop": ("while True: pass", "wall"),
}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_service_answers_throughout(
    isolating: IsolatedExecutor, folder: Path, tmp_path: Path
) -> None:
    marker = f"marker-{folder.name}"

    def attack(name: str) -> str | None:
        work = folder / name
        work.mkdir()
        source, exceeded = HOSTILE[name]
        wall_s = 3 if exceeded == "wall" else 90  # the others share the machine with these
        done = run(isolating, work, source, marker, wall_s=wall_s, memory=128 * MIB, file=16 * MIB)
        assert not done.ok
        return done.exceeded

    answers = []
    with asgi(Settings(home=tmp_path / "home")) as api, ThreadPoolExecutor(len(HOSTILE)) as threads:
        running = {name: threads.submit(attack, name) for name in HOSTILE}
        while not all(future.done() for future in running.values()):
            for path in ("/healthz", "/v1/problems", "/v1/jobs"):
                answers.append(api.get(path).status_code)
        ended = {name: future.result() for name, future in running.items()}
        assert api.get("/healthz").json()["status"] == "ok"
    assert ended == {name: exceeded for name, (_, exceeded) in HOSTILE.items()}
    assert len(answers) >= 3
    assert set(answers) == {200}
    assert gone(marker)
    assert not left_groups(os.getpid())
