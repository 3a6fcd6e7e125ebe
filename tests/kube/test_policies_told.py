"""What AutopilotPolicies say of themselves: the one that counts, where something restrains it, and all others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apiserver.http.serve import Running
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.policy import Policy
from autopilot.crds.other_policies import EVERY_S, OtherPolicies
from autopilot.crds.policy_status import PolicyStatus
from autopilot.kube.cluster_api import Answer
from autopilot.service.cluster_policy import ClusterPolicySource, PolicyObject
from autopilot.service.leading.restraint import RestrainedPolicy
from scripts.generate_crds import FOLDER, files
from tests.kits.kubectl_kit import Kubectl
from tests.kits.recommendations_kit import Desk

HEAD = "apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nmetadata: {{name: {name}}}\nspec: {spec}\n"


@pytest.fixture
def desk(kubectl: Kubectl, running: Running, kubeconfig: Path, tmp_path: Path) -> Iterator[Desk]:
    """A controller beside a cluster with our definitions."""
    kubectl("create", "namespace", "gpu-autopilot")
    for name in sorted(files()):
        kubectl.done("apply", "-f", str(FOLDER / name))
    kubectl.done("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    found = Desk(running, kubeconfig, tmp_path)
    found.tick()
    yield found
    kubectl.done("delete", "autopilotpolicies", "--all")
    found.close()


@pytest.fixture
def told(kubectl: Kubectl) -> Callable[[str], tuple[dict[str, Any], dict[str, Any]]]:
    """The condition and the status of a policy."""

    def status(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        found = json.loads(kubectl.done("get", "autopilotpolicy", name, "-o", "json"))["status"]
        return found["conditions"][0], found

    return status


def test_a_policy_that_the_service_does_not_obey_says_which_one_counts(
    desk: Desk, kubectl: Kubectl, told: Callable[[str], tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """A second one, and one that counted before its name was changed in the settings; each is written once."""
    for name in ("fleet", "second"):
        kubectl.done("apply", "-f", "-", stdin=HEAD.format(name=name, spec="{base: approve}"))
    assert desk.publisher.latest is not None
    latest, steady, sent = desk.publisher.latest, [0.0], []

    def send(method: str, target: str, body: Any, media: str) -> Answer:
        sent.append(target)
        return desk.api.send(method, target, body, media)

    def serve(name: str) -> OtherPolicies:
        source = ClusterPolicySource(desk.api.get, PolicyObject(name), desk.folder / name)
        source.current()
        assert PolicyStatus(source, desk.api.get, desk.api.send, lambda: 0.0)(latest) == ""
        return OtherPolicies(source.place, desk.api.get, send, lambda: steady[0])

    others = serve("fleet")
    assert others(latest) == ""
    condition, _ = told("second")
    assert (condition["status"], condition["reason"]) == ("False", "NotObeyed")
    assert "the service obeys AutopilotPolicy fleet" in condition["message"]
    assert told("fleet")[0]["status"] == "True"
    steady[0] += EVERY_S
    assert others(latest) == ""
    assert len(sent) == 1
    assert serve("second")(latest) == ""
    condition, status = told("fleet")
    assert (condition["reason"], status.keys() & {"actions", "inForce"}) == ("NotObeyed", set())
    assert told("second")[0]["reason"] == "Limited"


def test_a_restraint_is_named_by_the_policy_and_by_each_action(
    desk: Desk, kubectl: Kubectl, told: Callable[[str], tuple[dict[str, Any], dict[str, Any]]]
) -> None:
    """The policy is read and in force; a fence that is not checked, or the mark of the watchdog, limits its modes."""
    spec = "{modes: {admit_gang: auto, preempt: auto}}"
    kubectl.done("apply", "-f", "-", stdin=HEAD.format(name="fleet", spec=spec))
    source = ClusterPolicySource(desk.api.get, PolicyObject("fleet"), desk.folder / "last")
    mark, now = [""], [0.0]
    held = RestrainedPolicy(
        source, lambda: (mark[0], ""), lambda: ("no fence", False), frozenset({"preempt"}), monotonic_s=lambda: now[0]
    )
    held.leads = lambda: True
    writer = PolicyStatus(source, desk.api.get, desk.api.send, lambda: 0.0)

    def why() -> tuple[dict[str, Any], dict[str, str]]:
        now[0] += 60.0
        desk.policy = held.current()
        desk.tick()
        assert desk.publisher.latest is not None
        assert writer(replace(desk.publisher.latest, policy_problem=held.problem or "")) == ""
        condition, status = told("fleet")
        return condition, {each["action"]: each["why"] for each in status["actions"] if "why" in each}

    condition, reasons = why()
    assert (condition["status"], condition["reason"]) == ("True", "Limited")
    assert "no fence; `auto` counts as recommend for preempt" in condition["message"]
    assert reasons.keys() == {"preempt"}
    assert "no fence" in reasons["preempt"]
    mark[0] = "nobody renewed the Lease"
    condition, reasons = why()
    assert reasons.keys() == {"admit_gang", "preempt"}
    assert "`autopilot rearm`" in reasons["admit_gang"]
    assert "nobody renewed the Lease" in condition["message"]
    assert Policy(modes=replace(Modes(), admit_gang=Mode.AUTO)).modes.admit_gang == source.written.modes.admit_gang
