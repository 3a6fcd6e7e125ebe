"""Files of the records of the service, for commands elsewhere: metering, and the audit log with its public key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Response
from fastapi import Path as Part

from autopilot.http.answers import stated
from autopilot.http.auth import Admin, Viewer
from autopilot.http.desk import Asked
from autopilot.http.view_answers import RecordFiles

router = APIRouter(prefix="/api/v1/records", tags=["records"])
BYTES = "application/octet-stream"
FILE: dict[int | str, dict[str, Any]] = {200: {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}}
Name = Annotated[str, Part(max_length=200, description="one of the listed files")]
METERING, AUDIT = ("about.json", "s-*.parquet"), ("*.jsonl", "../audit.key.pub")


@router.get("/metering", responses=stated(RecordFiles))
def metering_files(desk: Asked, _caller: Viewer) -> dict[str, Any]:
    """The files of the metering, which `autopilot showback` sums."""
    return {"files": sorted(_files(desk.metering, METERING))}


@router.get("/metering/{name}", responses=FILE, response_class=Response)
def metering_file(desk: Asked, _caller: Viewer, name: Name) -> Response:
    """One file of the metering."""
    return _content(desk.metering, METERING, name)


@router.get("/audit", responses=stated(RecordFiles))
def audit_files(desk: Asked, _caller: Admin) -> dict[str, Any]:
    """The files of the audit log, and the public key of its seals."""
    return {"files": sorted(_files(desk.record.folder, AUDIT))}


@router.get("/audit/{name}", responses=FILE, response_class=Response)
def audit_file(desk: Asked, _caller: Admin, name: Name) -> Response:
    """One file of the audit log."""
    return _content(desk.record.folder, AUDIT, name)


def _files(folder: Path | None, patterns: tuple[str, ...]) -> dict[str, Path]:
    """The offered files, by name."""
    if folder is None:
        return {}
    found = [path for each in patterns if "/" not in each for path in folder.glob(each)]
    found += [folder.parent / each.removeprefix("../") for each in patterns if "/" in each]
    return {path.name: path for path in found if path.is_file()}


def _content(folder: Path | None, patterns: tuple[str, ...], name: str) -> Response:
    try:
        return Response(_files(folder, patterns)[name].read_bytes(), media_type=BYTES)
    except (KeyError, OSError) as error:
        raise HTTPException(404, f"{name}: no such file now; list them again") from error
