"""Tasks for children of test_gpu_children.py."""

import os
import sys
import time

from tests.gpu.tasks import Events, serve


def add(a: int, b: int) -> Events:
    yield {"event": "ready"}
    sys.stdout.write("somebody else's line\n")
    yield {"event": "sum", "sum": a + b}


def hang() -> Events:
    yield {"event": "ready"}
    yield {"event": "before", "pid": os.getpid()}
    time.sleep(600)


def die() -> Events:
    yield {"event": "ready"}
    sys.stderr.write("first words\nlast words\n")
    sys.stderr.flush()
    os._exit(3)


def fail() -> Events:
    yield {"event": "ready"}
    raise ValueError("no such thing")


def report() -> Events:
    yield {"event": "ready"}
    yield {"event": "report", "text": "rank 0 waits"}
    yield {"event": "after"}


if __name__ == "__main__":
    serve({"add": add, "hang": hang, "die": die, "fail": fail, "report": report})
