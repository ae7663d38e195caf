"""The page's files: served, complete, and free of inline code. A browser looks in test_browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.routes.page import FILES
from tests.api.serving import Api

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"


@pytest.mark.parametrize("path", FILES)
def test_each_file_comes_with_its_type(api: Api, path: str) -> None:
    name, media_type = FILES[path]
    response = api.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == media_type
    assert response.content == (WEB / name).read_bytes()
    assert api.request("HEAD", path).status_code == 200


def test_every_file_is_served() -> None:
    assert {name for name, _ in FILES.values()} == {path.name for path in WEB.iterdir()}


def test_what_the_page_refers_to_is_served() -> None:
    text = (WEB / "index.html").read_text()
    for address in re.findall(r'(?:src|href)="(/[^"#]*)"', text):
        assert address in FILES, address
    for script in WEB.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', script.read_text()):
            assert f"/{name}" in FILES, f"{script.name} imports {name}"


def test_nothing_is_inline() -> None:
    """The page's policy would refuse it, and so would a reader."""
    text = (WEB / "index.html").read_text()
    assert not re.search(r"<style|style=|\son\w+=|javascript:", text)
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)


def test_text_never_becomes_markup() -> None:
    for script in WEB.glob("*.js"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function",
            script.read_text(),
        )
        assert not found, f"{script.name}: {found}"


def test_the_page_listens_to_every_event_there_is() -> None:
    """Types are written where events are: in store, agent and workers."""
    event = re.compile(r'"((?:job|attempt|best|llm|budget|plateau|cancel)\.(?!id")[a-z]+)"')
    written = {
        type
        for package in ("store", "agent", "workers")
        for path in (ROOT / package).rglob("*.py")
        for type in event.findall(path.read_text())
    }
    declared = re.search(r"EVENT_TYPES = \[(.*?)\]", (WEB / "app.js").read_text(), re.DOTALL)
    assert declared is not None
    listened = set(re.findall(r'"([a-z.]+)"', declared[1]))
    assert written <= listened, f"the page does not listen to {written - listened}"
    assert {"job.finished", "attempt.judged", "best.updated"} <= written
