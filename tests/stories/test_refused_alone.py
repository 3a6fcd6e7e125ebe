"""One object is refused, and the rest of the cluster goes on.

A team's policy refuses that its Job starts, or a node is not set up for its MIG manager. The refusal is said once on
the object, and its effect is tried again after `pause.window_s` (15 min). It does not pause the autopilot, as other
failures would.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actuators.kubernetes.levers.mig_config import CONFIG_MAP
from autopilot.contract.annotations import MANAGE
from tests.kits.deciding_kit import Deciding
from tests.kits.mig_kit import SPACE
from tests.kits.playground_acting import policy_of
from tests.stories.test_mig_regeometry import leave
from tests.stories.test_mig_regeometry import open_cluster as open_mig_cluster

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
EMPTY = "version: v1\nmig-configs:\n  all-disabled:\n  - devices: all\n    mig-enabled: false\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Deciding]:
    """Three nodes of eight GPUs."""
    found = Deciding(tmp_path, policy_of())
    yield found
    found.close()


def refuse(cluster: Deciding, job: str) -> None:
    """An admission policy of somebody else: this Job stays suspended."""
    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
    text = f"object.metadata.name != '{job}' || object.spec.suspend"
    refuses = {"expression": text, "message": "the team decides that", "reason": "Forbidden"}
    policy = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}, "validations": [refuses]}
    binding = {"policyName": "team", "validationActions": ["Deny"]}
    for kind, plural, spec in (
        ("ValidatingAdmissionPolicy", "policies", policy),
        ("ValidatingAdmissionPolicyBinding", "policybindings", binding),
    ):
        body = {"apiVersion": ADMISSION[6:], "kind": kind, "metadata": {"name": "team"}, "spec": spec}
        cluster.ask("POST", f"{ADMISSION}/validatingadmission{plural}", body)


def test_a_job_that_a_policy_refuses_pauses_nothing_else(cluster: Deciding) -> None:
    """It is tried once in a quarter of an hour; a Job that comes after it starts."""
    refuse(cluster, "held")
    cluster.run(2)
    cluster.plain_job("held", 8, 1, labels={MANAGE: "true"}, suspend=True)
    cluster.wait(600.0)
    (event,) = cluster.events("held")
    assert event[0] == "AdmitFailed"
    assert "the team decides that" in event[1]
    assert (cluster.failures, cluster.controller.memory.halt.paused_reason) == (0, "")
    cluster.plain_job("other", 8, 1, labels={MANAGE: "true"}, suspend=True)
    cluster.wait(30.0)
    assert len(cluster.hosts("other")) == 1
    cluster.wait(300.0)
    assert len(cluster.events("held")) == 2


def test_a_mig_configuration_that_the_file_lacks_pauses_nothing_else(tmp_path: Path) -> None:
    """The present geometry of the node is no entry of the file any more."""
    cluster = open_mig_cluster(tmp_path)
    path = f"/api/v1/namespaces/{SPACE}/configmaps/{CONFIG_MAP}"
    cluster.ask("PATCH", path, {"data": {"config.yaml": EMPTY}})
    leave(cluster, "half")
    cluster.wait(900.0)
    assert {reason for reason, _ in cluster.events("m1")} == {"RecutFailed"}
    assert len(cluster.events("m1")) <= 2, "one for each GPU of the node"
    assert (cluster.failures, cluster.controller.memory.halt.paused_reason) == (0, "")
    cluster.close()
