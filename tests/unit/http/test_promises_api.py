"""Promised and realised over the API: the sums, the cap, and who may lift it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.memory.trust import TrustMemory
from autopilot.core.model.promises import Promise, PromiseRecord
from autopilot.core.model.records import CommandKind
from autopilot.http.desk import Desk
from autopilot.service.settings import Role
from tests.kits.core_world import decide, holds, waits, world
from tests.kits.http_kit import client, desk_over, published
from tests.kits.ticking_world import EAGER

CAPPED = PromiseRecord(((100.0, 20.0),) * 20, 900.0)
MEMORY = ControllerMemory(
    trust=TrustMemory(
        promises=(Promise("p", "preempt", 1.0, 9e9, 5.0, done=True),),
        kept_promises={"preempt": CAPPED, "defragment": PromiseRecord(((10.0, 9.0),))},
    ),
)


def desk_with(folder: Path, memory: ControllerMemory = MEMORY) -> Desk:
    """A desk after a tick with this memory: a gang of higher priority waits for all GPUs."""
    observation = world("1x8", [holds("v", 8), waits("w", 8, priority=5)], 1000.0)
    step = decide(observation, EAGER, replace(memory, trust=replace(memory.trust, promises=())))
    shown = published(observation, EAGER)
    return desk_over(
        folder,
        replace(
            shown,
            decision=step.decision,
            memory=replace(step.memory, trust=replace(step.memory.trust, promises=memory.trust.promises)),
        ),
    )


def test_the_sums_and_the_cap_of_each_action_are_listed(tmp_path: Path) -> None:
    """Actions without a case are not."""
    found = client(desk_with(tmp_path), Role.VIEWER).get("/api/v1/promises").json()
    assert (found["least_cases"], found["least_ratio"]) == (20, 0.5)
    assert [row["action"] for row in found["actions"]] == ["defragment", "preempt"]
    assert found["actions"][1] == {
        "action": "preempt",
        "mode": "auto",
        "cases": 20,
        "promised_gpu_s": 2000.0,
        "realised_gpu_s": 400.0,
        "least_gpu_s": 1000.0,
        "promised_use": "0.556 GPU-h",
        "realised_use": "0.111 GPU-h",
        "least_use": "0.278 GPU-h",
        "capped_since_s": 900.0,
        "under_way": 1,
    }
    assert found["actions"][0]["capped_since_s"] is None


def test_only_an_admin_lifts_a_cap_and_the_record_names_who(tmp_path: Path) -> None:
    """The command is stored for the next tick and audited."""
    desk = desk_with(tmp_path)
    assert client(desk, Role.APPROVER).post("/api/v1/lift/preempt").status_code == 403
    assert client(desk, Role.ADMIN).post("/api/v1/lift/preempt").json()["result"] == "stored"
    (command,) = desk.inbox.drain(0.0)
    assert (command.kind, command.subject, command.who) == (CommandKind.LIFT, "preempt", "admin")
    lines = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.log*") if path.is_file())
    lines += "".join(path.read_text("utf-8") for path in tmp_path.rglob("*.jsonl") if path.is_file())
    assert '"lift"' in lines


def test_a_lift_without_a_cap_is_refused(tmp_path: Path) -> None:
    """An action that is not capped, and one that does not exist."""
    admin = client(desk_with(tmp_path), Role.ADMIN)
    assert admin.post("/api/v1/lift/defragment").status_code == 409
    assert admin.post("/api/v1/lift/nothing").status_code == 404


def test_an_approval_of_a_capped_action_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """409 names the command."""
    desk = desk_with(tmp_path)
    (open_one,) = client(desk, Role.VIEWER).get("/api/v1/recommendations").json()["recommendations"]
    assert "0.556 GPU-h promised by 20 cases" in open_one["words"]
    answer = client(desk, Role.APPROVER).post(f"/api/v1/recommendations/{open_one['id']}/approve")
    assert answer.status_code == 409
    assert "autopilot lift preempt" in answer.json()["detail"]
