"""The page: a handful of static files, the same in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

# `web/` lies beside the packages, in the repository and in site-packages alike.
_WEB = Path(__file__).resolve().parent.parent.parent / "web"
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}

router = APIRouter(include_in_schema=False)


def _serve(address: str, name: str, media_type: str) -> None:
    def send() -> FileResponse:
        headers = {"Cache-Control": "no-cache"}
        return FileResponse(_WEB / name, media_type=media_type, headers=headers)

    router.add_api_route(address, send, methods=["GET", "HEAD"])


for _address, (_name, _media_type) in FILES.items():
    _serve(_address, _name, _media_type)
