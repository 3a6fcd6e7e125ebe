"""A person who follows the runbook of an alert ends it; without one the alert goes on.

Two playgrounds of one scenario, each with a real Prometheus and Alertmanager: a person is on call beside the first
only. In both, the first starts of work are approved. Time is that of the clusters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from autopilot.app.runs.people import CARD_S, LOOK_S
from tests.kits.kubectl_kit import Kubectl
from tests.kits.oncall_kit import OnCall, on_call_playground
from tests.service.kit import cli, poll

pytestmark = pytest.mark.e2e

SPEED = 60.0
DAY_S = 86_400.0
"""The clock of a playground starts at midnight."""
BROKEN_S = 900.0
FRAGMENTED, HOARDING = "GPUAutopilotClusterFragmented", "GPUAutopilotTenantHoarding"
ALERTS = {(FRAGMENTED, "h100"), (HOARDING, "art"), (HOARDING, "photo")}
LABEL = {FRAGMENTED: "pool", HOARDING: "tenant"}
APPROVE = re.compile(r"^ +autopilot approve (\S+)$", re.MULTILINE)
"""The command that a runbook prints for what is recommended."""
IDLE = re.compile(r"Idle: (\S+)/(\S+) .*its owner or an admin of its queue may stop it, as the runbook says")
DELETE = "kubectl -n NAMESPACE delete job NAME"
"""The command of the runbook for the owner."""

AT_FIRST = 8
"""Jobs that have room at once."""


class Person:
    """Looks at the alerts every `LOOK_S`, and does what their runbooks say; each recommendation takes `CARD_S`."""

    def __init__(self, on: OnCall, kubectl: Kubectl) -> None:
        self._on, self._kubectl, self._look_s = on, kubectl, 0.0

    def work(self) -> None:
        """Do what is due now."""
        now_s = self._on.now_s
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        for name, about in sorted(ALERTS & set(self._on.firing())):
            text = self._on.cli("runbook", name, "--label", f"{LABEL[name]}={about}")
            shown = APPROVE.findall(text)
            for recommendation in shown:
                self._read()
                where = ("--state", str(self._on.running.state), "--token-file", "approver.token")
                cli(self._on.folder, "approve", recommendation, *where)  # refused where it is not shown any more
            if not shown and (idle := IDLE.search(text)) and idle[1] == about:
                assert DELETE in text
                self._kubectl("-n", idle[1], "delete", "job", idle[2], "--wait=false")

    def _read(self) -> None:
        end_s = self._on.now_s + CARD_S
        poll(lambda: self._on.now_s >= end_s, "the card is read", BROKEN_S)


def start_work(on: OnCall) -> None:
    """Approve the first starts."""
    asked: set[str] = set()

    def all_started() -> bool:
        found = on.ask("/api/v1/recommendations")["recommendations"]
        shown = [each for each in found or () if each["approvable"] and each["action"] == "admit_gang"]
        for each in shown:
            path = f"/api/v1/recommendations/{each['id']}/approve"
            on.ask(path, "POST", "approver", json={"digest": each["digest"]})
            asked.add(each["id"])
        return len(asked) == AT_FIRST and found is not None and not shown

    poll(all_started, "the first jobs start", BROKEN_S)


def records(on: OnCall) -> dict[tuple[str, str], dict[str, Any]]:
    """The alerts as the service has them, the latest of each."""
    found = reversed(on.ask("/api/v1/alerts")["alerts"])
    return {
        (each["alert"], about): each
        for each in found
        for about in each["about"].values()
        if (each["alert"], about) in ALERTS
    }


def test_an_alert_ends_by_its_runbook_and_by_nothing_else(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Fired, delivered, looked up, approved with the delay of a person, carried out, verified and resolved."""
    with ExitStack() as stack:
        sides = []
        for name in ("followed", "alone"):
            (tmp_path / name).mkdir()
            sides.append(stack.enter_context(on_call_playground(tmp_path / name, require_tool, "on-call", SPEED)))
            start_work(sides[-1])
        on, alone = sides
        person = Person(on, Kubectl(require_tool("kubectl"), on.running.state / "playground.kubeconfig"))
        fired: set[tuple[str, str]] = set()
        began: dict[tuple[str, str], str] = {}

        def ended() -> bool:
            person.work()
            firing = set(on.firing())
            fired.update(firing)
            began.update(alone.firing())
            return fired >= ALERTS and not firing & ALERTS

        poll(ended, "a person ends the alerts", BROKEN_S)
        end_s = on.now_s % DAY_S
        poll(lambda: {each["stage"] for each in records(on).values()} == {"ended"}, "the service knows")
        listed = on.cli("alerts")
        for (_, about), found in records(on).items():
            acted = found["acted"]
            after = f"after {', '.join(acted)}" if about != "photo" else "without an action"
            assert found["reason"] == f"the alert resolved {after}", found
            assert all(each in listed for each in acted), listed
            assert bool(acted) == (about != "photo"), "the owner acted"
            if acted:
                assert {"proposed", "acting", "verifying"} <= {each["stage"] for each in found["history"]}, found

        poll(lambda: alone.now_s % DAY_S >= end_s, "as long without a person", BROKEN_S)
        firing = alone.firing()
        assert {key: firing.get(key) for key in ALERTS} == {key: began[key] for key in ALERTS}, "they fire ever since"
        assert not any(each["acted"] for each in records(alone).values()), "nothing was done"
