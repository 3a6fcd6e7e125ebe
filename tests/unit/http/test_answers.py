"""The answers of the API are those that its schema states: every field is there and described, in its type."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from autopilot.core.intake.assemble import assemble
from autopilot.core.intake.signals import UNMEASURED
from autopilot.core.model.objects import Slot, Victim
from autopilot.core.model.records import Observation, Reservation
from autopilot.http.answers import HeldFor, SlotRow, VictimRow
from autopilot.http.app import service_app
from autopilot.http.desk import Desk
from autopilot.service.settings import Role
from tests.kits.core_world import holds, waits, world
from tests.kits.demand_world import expecting, forecast, serving
from tests.kits.http_kit import ALERT, client, deliver, desk_over, published, signed_in
from tests.unit.metrics.test_metrics_exposition import a_world

DOCUMENT = service_app(None).openapi()  # type: ignore[arg-type]  # the schema needs no desk
FILES = {"/api/v1/records/metering/{name}", "/api/v1/records/audit/{name}"}
OUTLINE = {"/healthz", "/readyz", "/api/v1/events", "/api/v1/openapi.json", *FILES}
"""Answers of one text, the endless stream, the schema itself, and files."""


def strict() -> dict[str, Any]:
    """The components of the schema; a field that they do not describe is an error here, and none for a client."""
    parts: dict[str, Any] = deepcopy(DOCUMENT["components"])
    for part in parts["schemas"].values():
        if "properties" in part:
            part["additionalProperties"] = False
    return parts


PARTS = strict()


def problems(method: str, path: str, answer: Any) -> list[str]:
    """What differs from the stated 200 answer of a route."""
    content = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    found = Draft202012Validator({**content, "components": PARTS}).iter_errors(answer)
    return [f"{method} {path}: {each.json_path}: {each.message[:200]}" for each in found]


def operations() -> Iterator[tuple[str, str]]:
    """(method, path) of all routes with a stated answer."""
    for path, route in DOCUMENT["paths"].items():
        yield from ((method, path) for method in route if path not in OUTLINE)


def observations() -> dict[str, Observation]:
    """Worlds that fill the fields: work that runs and waits, forecasts, MIG instances, missing telemetry."""
    busy = world("3x8", [holds("runs", 8, on=range(8)), waits("waits", 8), waits("wide", 64)], 600.0)
    cut = {0: [("1g.10gb", 0), ("1g.10gb", 1)]}
    full = [holds("runs", 8, on=range(8, 16)), waits("gang", 16), holds("slice", on=[0], mig_profile=0, gpu_milli=0)]
    return {
        "service": expecting(serving(busy, forecast({"chat": 5.0})), "1g.10gb"),
        "cut": world("2x8", full, 9e5, cuts=cut, xids={9: 79}, total_s={"runs": 1e6}),
        "measured": a_world(),
        "empty": world("1x4", []),
        "blind": replace(world("1x4"), snapshot=assemble((), 0.0)[0], signals=UNMEASURED),
    }


@pytest.fixture(scope="module", params=list(observations()))
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A desk over one world, with an alert."""
    found = desk_over(tmp_path_factory.mktemp("desk"), published(observations()[request.param]))
    deliver(found, tenant="t0")
    return found


def test_every_answer_is_described() -> None:
    """No route answers with an outline."""
    for method, path in operations():
        content = DOCUMENT["paths"][path][method]["responses"]["200"]["content"]["application/json"]
        assert list(content["schema"]) == ["$ref"], (method, path)


@pytest.mark.parametrize(
    ("record", "answer", "without"),
    [(Reservation, HeldFor, set()), (Victim, VictimRow, {"keeps"}), (Slot, SlotRow, set())],
)
def test_records_are_described_with_all_fields(record: type, answer: type, without: set[str]) -> None:
    """Of records that a small world may not have."""
    assert {each.name for each in fields(record)} - without == set(answer.__annotations__)


def test_what_is_read_is_as_described(desk: Desk) -> None:
    """All documents of each world."""
    latest, asks, found = desk.latest(), client(desk, Role.VIEWER), []
    places = {
        "/api/v1/nodes/{node_id}": latest.observation.snapshot.nodes.id.tolist()[:2],
        "/api/v1/workloads/{workload_id}": latest.observation.snapshot.workloads.id.tolist()[:3],
        "/api/v1/decisions/{proposal_id}": [each.id for each in latest.decision.plan.proposals][:3],
        "/api/v1/runbooks/{alert}": [ALERT],
    }
    for method, path in operations():
        if method == "get":
            start = path.partition("{")[0]
            for name in places[path] if "{" in path else [""]:
                reads = client(desk, Role.ADMIN) if path == "/api/v1/records/audit" else asks
                answer = reads.get(start + name)
                assert answer.status_code == 200, (path, name, answer.text)
                found += problems(method, path, answer.json())
    found += problems("get", "/api/v1/recommendations", asks.get("/api/v1/recommendations?details=false").json())
    assert found == []
    assert problems("get", "/api/v1/fleet", {**asks.get("/api/v1/fleet").json(), "more": 1}), "a planted field"


def test_a_decision_is_explained_with_the_figures_of_now(tmp_path: Path) -> None:
    """One that repeats is listed once, as it was first; what stands in the latest tick is told as it is there."""
    first = published(world("1x8", [waits("a", 4)], 600.0))
    (one,) = first.decision.plan.proposals
    plan = replace(first.decision.plan, proposals=(replace(one, benefit_gpu_s=8640.0),))
    second = replace(first, decision=replace(first.decision, tick=1, now_s=660.0, plan=plan))
    asks = client(desk_over(tmp_path, first, second), Role.VIEWER)
    (listed,) = asks.get("/api/v1/decisions").json()["decisions"]
    shown = asks.get(f"/api/v1/decisions/{one.id}").json()
    assert (listed["tick"], shown["tick"], shown["gain"]) == (0, 1, "2.4 GPU-h")
    assert shown["lines"][0].endswith("at 11 min (tick 1)")


def test_the_answers_of_commands_are_as_described(tmp_path: Path) -> None:
    """Commands, before a tick obeys them; a session; a delivery; and the summary before the first tick."""
    desk = desk_over(tmp_path, published(observations()["service"]))
    asks, found = client(desk, Role.ADMIN), []
    for name in ("pause", "kill", "resume"):
        found += problems("post", f"/api/v1/{name}", asks.post(f"/api/v1/{name}").json())
    armed = client(replace(desk, rearm=lambda: ""), Role.ADMIN)
    found += problems("post", "/api/v1/rearm", armed.post("/api/v1/rearm").json())
    first = asks.get("/api/v1/recommendations").json()["recommendations"]
    for each in first[:1]:
        rejected = asks.post(f"/api/v1/recommendations/{each['id']}/reject")
        assert rejected.status_code == 200, rejected.text
        found += problems("post", "/api/v1/recommendations/{proposal_id}/reject", rejected.json())
    browser, csrf = signed_in(desk, Role.ADMIN)
    found += problems("get", "/api/v1/session", browser.get("/api/v1/session").json())
    ended = browser.delete("/api/v1/session", headers={"Origin": "http://testserver", "X-CSRF-Token": csrf})
    found += problems("delete", "/api/v1/session", ended.json())
    sent = client(desk, Role.ALERTS).post("/api/v1/alerts", json={"version": "4", "alerts": []})
    found += problems("post", "/api/v1/alerts", sent.json())
    empty = client(desk_over(tmp_path), Role.VIEWER).get("/api/v1/summary")
    found += problems("get", "/api/v1/summary", empty.json())
    assert found == []
