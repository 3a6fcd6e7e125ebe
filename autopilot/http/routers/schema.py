"""The OpenAPI schema of the API, for admins."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from autopilot.http.auth import Admin

router = APIRouter(prefix="/api/v1", tags=["schema"])


@router.get("/openapi.json")
def openapi(request: Request, _caller: Admin) -> dict[str, Any]:
    """The schema of this version, made from the code."""
    schema: dict[str, Any] = request.app.openapi()
    return schema
