"""The status page: a fixed set of files. They contain nothing of the cluster, so they need no token."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import APIRouter, HTTPException, Request, Response

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Only our own files are loaded, nothing inline, and no text becomes markup."""

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class File(NamedTuple):
    """One file of the page."""

    body: bytes
    media_type: str
    tag: str


def _read(folder: Traversable, prefix: str = "") -> dict[str, File]:
    found: dict[str, File] = {}
    for each in folder.iterdir():
        suffix = "." + each.name.rpartition(".")[2]
        if each.is_dir():
            found |= _read(each, f"{prefix}{each.name}/")
        elif suffix in TYPES:
            body = each.read_bytes()
            found[prefix + each.name] = File(
                body, f"{TYPES[suffix]}; charset=utf-8", f'"{sha256(body).hexdigest()[:20]}"'
            )
    return found


FILES = _read(files("autopilot.http") / "static")
"""All files by their name below `/static/`; a request names one of these or nothing."""


@router.get("/")
def page(request: Request) -> Response:
    """The page."""
    return _answer(request, FILES["index.html"])


@router.get("/static/{name:path}")
def static(request: Request, name: str) -> Response:
    """One file of the page."""
    found = FILES.get(name)
    if found is None:
        raise HTTPException(404, "no such file")
    return _answer(request, found)


def _answer(request: Request, found: File) -> Response:
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "ETag": found.tag}
    if request.headers.get("If-None-Match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
