"""The API against its own schema: generated requests get no 500, and every answer is one that the schema states."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.applications import Starlette
from starlette.routing import Route

from autopilot.http.app import service_app
from autopilot.http.desk import Desk
from autopilot.service.settings import Role
from tests.kits.core_world import holds, waits, world
from tests.kits.demand_world import forecast, serving
from tests.kits.http_kit import ALERT, TOKENS, client, deliver, desk_over, published

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = "/api/v1/events"
DOCUMENT = service_app(None).openapi()  # type: ignore[arg-type]  # the schema needs no desk


class Target:
    """The application that is asked now; before the first one its schema."""

    def __init__(self) -> None:
        self.app: Any = Starlette(routes=[Route("/schema", lambda _: JSONResponse(DOCUMENT))])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


TARGET = Target()
SCHEMA = schemathesis.openapi.from_asgi("/schema", TARGET).exclude(path=ENDLESS)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Work that runs and waits, a service with a forecast, and an alert."""
    observed = world("3x8", [holds("runs", 8, on=range(8)), waits("waits", 8), waits("wide", 64)], 600.0)
    found = desk_over(tmp_path_factory.mktemp("desk"), published(serving(observed, forecast({"chat": 5.0}))))
    deliver(found, tenant="t0")
    return found


@pytest.fixture(scope="module")
def app(desk: Desk) -> FastAPI:
    """The application of the desk."""
    return service_app(desk)


@pytest.fixture
def fresh(app: FastAPI) -> None:
    """The middleware is made for each operation: the limit of requests counts anew."""
    TARGET.app, app.middleware_stack = app, None


@SCHEMA.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_generated_requests_get_answers_of_the_schema(case: schemathesis.Case[Any], fresh: None) -> None:
    """As an admin, so that the content of a request is read."""
    case.call_and_validate(headers={"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}, checks=CHECKS)


@pytest.mark.parametrize(
    "path",
    [
        f"runbooks/{ALERT}?tenant=%22%7D%20or%20up%7B%22",
        "runbooks/%2e%2e%2f",
        "alerts?limit=1000",
        "decisions/%00",
        "workloads/%F0%9F%92%A5",
        "nodes/..%2f..%2fetc",
        "history?after_s=nan",
        "history?after_s=1e999",
    ],
)
def test_strange_names_are_answered(desk: Desk, path: str) -> None:
    """No name of an object reaches anything but a lookup."""
    assert client(desk, Role.VIEWER).get(f"/api/v1/{path}").status_code in {200, 404, 422}
