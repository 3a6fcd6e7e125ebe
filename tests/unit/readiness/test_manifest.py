"""deploy/observe.yaml grants what the service reads, and nothing that changes a cluster."""

from __future__ import annotations

import yaml

from autopilot.readiness.rights import RIGHTS
from collectors.kubernetes.kinds import KINDS
from scripts.generate_observe import DEPLOY, manifests

ASKS = {"tokenreviews"}  # created, and kept nowhere


def _documents() -> list[dict[str, object]]:
    return list(yaml.safe_load_all((DEPLOY / "observe.yaml").read_text("utf-8")))


def test_the_files_are_those_of_the_table() -> None:
    """`python scripts/generate_observe.py` writes it, and the maps of the settings."""
    for path, text in manifests().items():
        assert path.read_text("utf-8") == text, "run: python scripts/generate_observe.py"


def test_what_is_applied_again_overwrites_no_setting() -> None:
    """`kubectl apply` sets what its file says: an upgrade would switch effects on that a person has stopped."""
    assert "ConfigMap" not in {each["kind"] for each in _documents()}


def test_no_right_changes_anything() -> None:
    """Every verb reads, but for reviews; secrets are never read, and nothing is granted by a wildcard."""
    rules = [rule for each in _documents() if each["kind"] in {"Role", "ClusterRole"} for rule in each["rules"]]  # type: ignore[attr-defined]
    for rule in rules:
        reading = set(rule["verbs"]) <= {"get", "list", "watch"}
        assert reading or set(rule["resources"]) <= ASKS, rule
        assert not {"*", "secrets"} & {*rule["resources"], *rule["apiGroups"], *rule["verbs"]}
    granted = {(group, resource) for rule in rules for group in rule["apiGroups"] for resource in rule["resources"]}
    assert granted == {(right.group, right.resource) for right in RIGHTS}


def test_config_maps_are_granted_in_one_namespace_only() -> None:
    """A Role, not the ClusterRole, grants them."""
    whole = next(each for each in _documents() if each["kind"] == "ClusterRole")
    assert "configmaps" not in str(whole["rules"])
    role = next(each for each in _documents() if each["kind"] == "Role")
    assert role["metadata"]["namespace"] == "gpu-autopilot"  # type: ignore[index]


def test_every_kind_that_is_read_is_granted() -> None:
    """With the same need; beside them only what `autopilot check` and the settings ask for."""
    read = {(kind.group, kind.name): kind.needed for kind in KINDS}
    granted = {(right.group, right.resource): right.needed for right in RIGHTS}
    assert {key: granted.get(key) for key in read} == read
    assert {resource for _, resource in granted.keys() - read.keys()} == {
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "tokenreviews",
        "configmaps",
    }
