"""An alert from end to end: Prometheus fires it, Alertmanager delivers it, a person approves, and it resolves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autopilot.records.audit.entry import Kind, parse_line
from autopilot.records.journal.alerts import AlertStep
from autopilot.records.journal.reader import JournalReader
from tests.kits.oncall_kit import OnCall, halves, hoarded, on_call
from tests.service.kit import cli, poll

FRAGMENTED, HOARDING = "GPUAutopilotClusterFragmented", "GPUAutopilotTenantHoarding"
PATH = ["received", "proposed", "acting", "verifying", "verified", "ended"]
"""Every stage of an alert that a recommendation ends."""


def _approved(on: OnCall, name: str, action: str) -> str:
    """Approve what the alert proposes, as a person does: read it, and try again where its price has moved since."""
    shown = {each["id"]: each for each in on.ask("/api/v1/recommendations")["recommendations"] or []}
    for proposal in (on.alert(name) or {}).get("proposals", ()):
        if shown.get(proposal, {}).get("action") != action:
            continue
        seen = {"digest": shown[proposal]["digest"]}
        path = f"/api/v1/recommendations/{proposal}/approve"
        if on.ask(path, "POST", "approver", json=seen).get("result") == "carried out":
            return str(shown[proposal]["proposal"])
    return ""


def _ended_by_approval(on: OnCall, name: str, action: str) -> tuple[dict[str, Any], str]:
    """Follow one alert to its end; the alert, and the proposal that was approved."""
    found = poll(on.at_stage(name, "proposed"), f"{name} has a recommendation")
    assert found["evidence"]
    assert all(each["problem"] is None for each in found["evidence"]), found["evidence"]
    proposal = poll(lambda: _approved(on, name, action), "the approval is carried out")
    return poll(on.at_stage(name, "ended"), f"{name} ends"), proposal


def _stages(steps: tuple[AlertStep, ...], name: str) -> list[str]:
    """The stages of one alert. It may wait for its proposal for a tick."""
    return [each.stage for each in steps if each.alert == name and each.stage != "waiting"]


def _check_records(on: OnCall, name: str, proposal: str) -> None:
    """The service has ended: the journal and the audit log have every stage, and who approved."""
    with JournalReader(next(on.running.state.rglob("*.journal"))) as reader:
        steps = reader.alerts()
        assert reader.find_proposal(proposal)
    found = _stages(steps, name)
    assert [each for at, each in enumerate(found) if each != "waiting" and found[at - 1 : at] != [each]] == PATH, steps
    lines = [
        line for path in sorted((on.running.state / "audit").glob("*.jsonl")) for line in path.read_bytes().splitlines()
    ]
    events = [parse_line(line).event for line in lines]
    of_alert = [each for each in events if each.kind == Kind.ALERT and each.subject == name]
    delivered = [each for each in of_alert if each.who == "alerts"]
    assert [each.facts["reason"] for each in delivered] == ["it fires", "it resolved"]
    assert {each.facts["stage"] for each in of_alert if each.who == "autopilot"} >= {*PATH}
    approvals = [each for each in events if each.kind == Kind.COMMAND and each.facts["command"] == "approve"]
    assert {each.who for each in approvals} == {"approver"}
    assert all(each.facts["covers"] == "plans within its cover" and each.state_digest for each in approvals)
    sent = [each for each in events if each.kind == Kind.INSTRUCTION and each.facts["proposal"] == proposal]
    assert len(sent) == len({each.facts["id"] for each in sent}) > 0, "each effect was sent once"


def _check_runbook(on: OnCall, alert: dict[str, Any]) -> None:
    """`autopilot runbook ALERT` takes the labels of the alert that fires, and prints its answers and proposals."""
    words = ("runbook", alert["alert"], "--config", "service.yaml", "--token-file", "viewer.token")
    done = cli(on.folder, *words)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "tenant=art proposed: approve or reject the recommendation" in text, text
    assert any(f"recommended: {each}" in text for each in alert["proposals"]), text
    assert 'tenant:gpu_autopilot_idle_gpus:product{tenant="art"} tenant=art 8 GPUs' in text, text
    assert "Prometheus" not in text, "every query has an answer"
    assert f"export JOURNAL={next(on.running.state.rglob('*.journal'))}" in text


def _workload(on: OnCall, name: str) -> str:
    """What the service says about a workload, first line."""
    return str(on.ask(f"/api/v1/workloads/{name}")["lines"][0])


@pytest.mark.soak
def test_fragmentation_is_ended_by_an_approved_move(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Fires, delivered, evidence, recommended moves, approval, moved in the cluster, verified, resolved."""
    with on_call(tmp_path, require_tool, halves(tmp_path), speed=100.0) as on:
        ended, proposal = _ended_by_approval(on, FRAGMENTED, "defragment")
        assert ended["labels"]["pool"] == "default"
        assert [each["stage"] for each in ended["history"] if each["stage"] != "waiting"] == PATH
        assert not ended["firing"]
        assert "pending" not in _workload(on, "wide"), "the gang that waited runs"
        assert on.running.end() == 0
    _check_records(on, FRAGMENTED, proposal)
    assert "Traceback" not in on.running.log.read_text("utf-8")


def test_hoarding_is_ended_by_an_approved_reclaim(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Idle GPUs that are borrowed go back to their owner, by name of the hoarding tenant; the alert resolves."""
    with on_call(tmp_path, require_tool, hoarded(tmp_path), speed=200.0) as on:
        found = poll(on.at_stage(HOARDING, "proposed"), f"{HOARDING} has a recommendation")
        _check_runbook(on, found)
        ended, proposal = _ended_by_approval(on, HOARDING, "reclaim_borrowed")
        assert ended["labels"]["tenant"] == "art"
        assert [each["stage"] for each in ended["history"] if each["stage"] != "waiting"] == PATH
        decided = on.ask(f"/api/v1/decisions/{proposal}")
        assert decided["tenant"] == "film"
        assert [each["workload"] for each in decided["victims"]] == ["sketch-0-0000"], "the idle work gives way"
        assert on.running.end() == 0
    _check_records(on, HOARDING, proposal)
