"""What the child processes of children.py run: a task on standard input, events on the output."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

Events = Iterator[dict[str, Any]]


def serve(tasks: dict[str, Callable[..., Events]]) -> None:
    """Reads a task, yields its events as lines; a task's first event is "ready", then it waits.

    A kernel that gives up is an event of kind "report", after which the process is of no use.
    """
    asked = json.loads(sys.stdin.readline())
    events = tasks[asked.pop("task")](**asked)
    for event in events:
        print(json.dumps(event), flush=True)
        if event["event"] == "ready" and sys.stdin.readline() != "go\n":
            return
        if event["event"] == "report":
            break
    print(json.dumps({"event": "end"}), flush=True)


if __name__ == "__main__":
    from tests.gpu import checks

    serve(checks.TASKS)
