"""Our custom resources as kubectl sees them: columns, refused policies, and what an approver may not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.generate_crds import FOLDER, files
from tests.kits.kubectl_kit import Kubectl

POLICY = "apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nmetadata: {{name: night}}\nspec: {spec}\n"
RECOMMENDATION = {
    "apiVersion": "gpu-autopilot.io/v1alpha1",
    "kind": "Recommendation",
    "metadata": {"name": "admit-gang-vision-train-1a2b3c4d"},
    "spec": {
        "id": "admit-gang-vision/train-1a2b3c4d",
        "action": "admit_gang",
        "workload": "vision/train",
        "queue": "research",
    },
}
STATUS = {"gain": "12.4 GPU-h", "cost": "0 GPU-h", "state": "NeedsApproval", "why": "it fits now"}
AS = ("--as=pat", "--as-group=approvers")


@pytest.fixture(scope="module")
def applied(kubectl: Kubectl) -> Kubectl:
    """A cluster with the shipped definitions and roles, and a group of approvers."""
    kubectl.done("create", "namespace", "gpu-autopilot")
    for name in sorted(files()):
        kubectl.done("apply", "-f", str(FOLDER / name))
    kubectl.done("create", "clusterrolebinding", "on-call", "--clusterrole=gpu-autopilot-approver", "--group=approvers")
    kubectl.done("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    kubectl.done("create", "-f", "-", stdin=json.dumps(RECOMMENDATION))
    status = json.dumps({"status": STATUS})
    kubectl.done("patch", "rec", _name(), "--subresource=status", "--type=merge", f"--patch={status}")
    return kubectl


def _name() -> str:
    return str(RECOMMENDATION["metadata"]["name"])  # type: ignore[index]


def test_recommendations_are_listed_like_the_page(applied: Kubectl) -> None:
    """Action, workload, gain, cost, state and age; queue, tenant and reason with `-o wide`."""
    header, row = applied.done("get", "recommendations").splitlines()
    assert header.split() == ["NAME", "ACTION", "WORKLOAD", "GAIN", "COST", "STATE", "AGE"]
    assert row.split()[:-1] == [_name(), "admit_gang", "vision/train", "12.4", "GPU-h", "0", "GPU-h", "NeedsApproval"]
    wide = applied.done("get", "recommendations", "-o", "wide").splitlines()
    assert "it fits now" in wide[1]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{budget: {concurrent: 5, per_cluster: 4}}", "concurrent exceeds per_cluster"),
        ("{horizon_s: 600, hysteresis: {dwell_s: 900}}", "no disruptive action could ever pay off"),
        ("{modes: {preempt: maybe}}", 'Unsupported value: "maybe"'),
        ("{base: careful}", 'Unsupported value: "careful"'),
        ("{hysteresis: {dwell_s: soon}}", "hysteresis.dwell_s"),
        ("{reservation: {depth: 31}}", "less than or equal to 30"),
        ("{price_weight: {H100: 0}}", "greater than 0"),
    ],
)
def test_a_policy_that_cannot_be_right_is_refused_at_once(applied: Kubectl, spec: str, message: str) -> None:
    """Types, limits and the rules on several fields, by the API server alone."""
    assert message in applied.refused("apply", "-f", "-", stdin=POLICY.format(spec=spec))


def test_durations_may_be_written_as_in_a_file(applied: Kubectl) -> None:
    """A number of seconds or a text; a field that is misspelt is kept, so that the service can name it."""
    spec = "{horizon_s: 1d, hysteresis: {dwell_s: 900}, budget: {windows: 3}}"
    applied.done("apply", "-f", "-", stdin=POLICY.format(spec=spec))
    kept: dict[str, Any] = json.loads(applied.done("get", "autopilotpolicy", "night", "-o", "json"))["spec"]
    assert kept == {"horizon_s": "1d", "hysteresis": {"dwell_s": 900}, "budget": {"windows": 3}}
    header, row = applied.done("get", "autopilotpolicies").splitlines()
    assert header.split() == ["NAME", "IN", "FORCE", "REASON", "BASE", "AGE"]
    assert row.startswith("night")


def test_an_approver_may_annotate_and_nothing_else(applied: Kubectl) -> None:
    """What another person reads cannot be changed: the spec never changes, the status takes another right."""
    applied.done("annotate", "recommendation", _name(), "gpu-autopilot.io/approve=yes", *AS)
    changed = json.dumps({"spec": {"workload": "vision/other"}})
    refused = applied.refused("patch", "rec", _name(), "--type=merge", f"--patch={changed}", *AS)
    assert "another action or object is another recommendation" in refused
    status = json.dumps({"status": {"cost": "nothing"}})
    forbidden = applied.refused("patch", "rec", _name(), "--subresource=status", "--type=merge", f"-p={status}", *AS)
    assert "forbidden" in forbidden
    assert "forbidden" in applied.refused("create", "-f", "-", *AS, stdin=json.dumps(RECOMMENDATION))
    assert "forbidden" in applied.refused("delete", "rec", _name(), *AS)
    applied.done("patch", "rec", _name(), "--type=merge", f"--patch={status}", *AS)  # ignored: no part of the object
    assert json.loads(applied.done("get", "rec", _name(), "-o", "json"))["status"] == STATUS


def test_a_user_without_the_role_may_not_approve(applied: Kubectl) -> None:
    """The API server itself refuses the annotation."""
    refused = applied.refused("annotate", "recommendation", _name(), "gpu-autopilot.io/reject=yes", "--as=guest")
    assert "cannot get resource" in refused or "cannot patch resource" in refused


def test_the_rights_of_the_service_are_those_of_the_shipped_role() -> None:
    """Nothing outside of our group but Events, and no right to change the spec of a policy."""
    found = [each for each in yaml.safe_load_all((FOLDER / "roles.yaml").read_text("utf-8")) if "rules" in each]
    elsewhere = [rule for each in found for rule in each["rules"] if rule["apiGroups"] != ["gpu-autopilot.io"]]
    assert elsewhere == [{"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]}]
    service = {(res, verb) for rule in found[0]["rules"] for res in rule["resources"] for verb in rule["verbs"]}
    assert not {verb for res, verb in service if res == "autopilotpolicies"} - {"get", "list", "watch"}


def test_the_check_of_the_definitions_sees_a_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--check` fails where a file is missing or differs."""
    from scripts import generate_crds

    monkeypatch.setattr(generate_crds, "FOLDER", tmp_path)
    assert generate_crds.main(["--check"]) == 1
    assert generate_crds.main([]) == 0
    assert generate_crds.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("autopilotpolicy.spec", ("hysteresis", "<Object>", "the shipped policy that supplies the fields")),
        (
            "autopilotpolicy.spec.hysteresis.dwell_s",
            ("must last this long", "a number of seconds, or a text such as 15m"),
        ),
        ("autopilotpolicy.status.conditions", ("what is wrong, with the field and the fix",)),
        ("recommendation.status", ("expected cost, and the worst case", "why it is recommended")),
    ],
)
def test_kubectl_explains_every_field(applied: Kubectl, field: str, said: tuple[str, ...]) -> None:
    """From the descriptions of the definitions, which are those of docs/policy.md."""
    text = " ".join(applied.done("explain", field).split())
    for each in said:
        assert each in text
