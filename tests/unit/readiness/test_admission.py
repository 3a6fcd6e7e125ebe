"""What `autopilot check` says about the admission policies, on an API server that obeys them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from actuators.kubernetes.field_policy import NAME, WATCHDOG_NAME, field_policies
from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import User, service_account
from autopilot.kube.cluster_api import Answer
from autopilot.operate.check_policies import shipped_policies
from autopilot.readiness.admission import admission
from autopilot.readiness.fence import NAME as FENCE
from autopilot.readiness.line import Asked, Line, Status
from autopilot.readiness.report import text_of
from autopilot.service.settings import Kubernetes
from tests.kits.apiserver_kit import START, Asker
from tests.kits.fence_kit import BINDINGS, POLICIES, install_fence, install_fields, set_epoch
from tests.kits.lead_kit import InProcess, with_namespace

OURS = service_account("gpu-autopilot", "gpu-autopilot")
OTHER = User("ada", ("system:masters", "system:authenticated"))
MAY_ALL = {
    "metadata": {"name": "ours"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "gpu-autopilot", "namespace": "gpu-autopilot"}],
}


def look(api: Any, **settings: Any) -> dict[str, Line]:
    """The lines by policy, with effects and a Lease."""
    given = Kubernetes(in_cluster=True, **({"act": True, "lease": {}} | settings))
    found = admission(Asked(api, None, lambda: 0.0, "gpu-autopilot", policies=shipped_policies(given)))
    return {line.subject: line for line in found}


@pytest.fixture
def world() -> Server:
    """All policies as they ship, and a leader with epoch 7."""
    made = with_namespace(cluster(Timeline(START), random.Random(1)))
    Asker(made)("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", MAY_ALL)
    install_fields(made, field_policies())
    install_fence(made)
    set_epoch(made, 7)
    made.timeline.run_for(1.0)
    return made


def test_policies_in_force_are_told_by_the_server_itself(world: Server) -> None:
    """Each is tried where the account can try it; nothing is written."""
    found = look(InProcess(world, OURS))
    assert {name: (line.status, line.text) for name, line in found.items()} == {
        NAME: (Status.OK, "in force; nothing is written in kube-system"),
        WATCHDOG_NAME: (Status.OK, "installed and bound; nothing is written in kube-system"),
        FENCE: (Status.OK, "in force; the present epoch is 7"),
    }
    maps = Asker(world)("GET", "/api/v1/namespaces/gpu-autopilot/configmaps")["items"]
    assert [each["metadata"]["name"] for each in maps] == ["kube-root-ca.crt"]
    assert FENCE not in look(InProcess(world, OURS), lease=None), "a lock file is not fenced"
    assert look(InProcess(world, OURS), act=False) == {}


def _drop(path: str) -> Callable[[Asker], object]:
    return lambda ask: ask("DELETE", path)


def _patch(path: str, spec: dict[str, Any]) -> Callable[[Asker], object]:
    return lambda ask: ask("PATCH", path, {"spec": spec})


WRONG = {
    "a policy that was never applied": (_drop(f"{POLICIES}/{NAME}"), NAME, "is not there: a stolen token of the"),
    "a policy without its binding": (_drop(f"{BINDINGS}/{NAME}"), NAME, "no binding lets it refuse every such write"),
    "a binding that only warns": (_patch(f"{BINDINGS}/{NAME}", {"validationActions": ["Warn"]}), NAME, "no binding"),
    "a binding for some namespaces": (
        _patch(f"{BINDINGS}/{NAME}", {"matchResources": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}),
        NAME,
        "no binding lets it refuse every such write",
    ),
    "a policy of another version": (
        _patch(f"{POLICIES}/{WATCHDOG_NAME}", {"validations": [{"expression": "true"}]}),
        WATCHDOG_NAME,
        "is not that of this version (validations)",
    ),
    "a policy for some namespaces": (
        _patch(f"{POLICIES}/{NAME}", {"matchConstraints": {"namespaceSelector": {"matchLabels": {"a": "b"}}}}),
        NAME,
        "is not that of this version (matchConstraints)",
    ),
    "a fence that is not there": (_drop(f"{POLICIES}/{FENCE}"), FENCE, "what an earlier leader sends late is not"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_policy_that_does_not_limit_is_named_with_the_cure(world: Server, wrong: str) -> None:
    """One warning, which says what follows and which file to apply."""
    change, name, said = WRONG[wrong]
    change(Asker(world))
    world.timeline.run_for(1.0)
    found = look(InProcess(world, OURS))
    assert [line.subject for line in found.values() if line.status != Status.OK] == [name]
    assert said in found[name].text
    assert found[name].fix.startswith("apply deploy/")


def test_namespaces_that_an_operator_adds_are_no_other_version(world: Server) -> None:
    """They are shown."""
    policies = field_policies(protected="kube-system,prod")
    for each in policies[::2]:
        Asker(world)("PATCH", f"{POLICIES}/{each['metadata']['name']}", {"spec": each["spec"]})
    world.timeline.run_for(1.0)
    assert look(InProcess(world, OURS))[NAME].text == "in force; nothing is written in kube-system, prod"


def test_a_server_that_does_not_obey_is_found(world: Server) -> None:
    """The objects are as they should be, and the dry runs are accepted; or our own epoch is refused."""

    class Deaf(InProcess):
        def post(self, path: str, body: Any, query: Any = None) -> Answer:
            return Answer(201, "{}") if "configmaps" in path else super().post(path, body, query)

    found = look(Deaf(world, OURS))
    assert (found[NAME].status, found[NAME].fix.endswith("restart the API servers")) == (Status.WARNING, True)
    assert "a write with epoch 6 was accepted" in found[FENCE].text
    assert "deploy/fence.yaml" in found[FENCE].fix

    class Frozen(InProcess):
        def get(self, path: str, query: Any = None) -> Answer:
            return Answer(200, '{"spec": {"epoch": 100}}') if "epochs" in path else super().get(path, query)

    found = look(Frozen(world, OURS))
    assert (found[FENCE].status, "refuses the present epoch 100" in found[FENCE].text) == (Status.FAILED, True)
    assert found[FENCE].fix.startswith("restart the API servers one by one")


def test_somebody_else_is_told_that_nothing_limits_them(world: Server) -> None:
    """The policies are read, and not tried."""
    found = look(InProcess(world, OTHER))
    assert text_of(found["account"]).startswith("warning  admission    account                ada is not the account")
    assert found[NAME].text.startswith("installed and bound")
    assert found[FENCE].text == "installed and bound; not tried"


def test_what_cannot_be_read_is_said() -> None:
    """A right that an earlier deploy/observe.yaml did not have, and a cluster without the kinds."""

    class Refusing(InProcess):
        code = 403

        def get(self, path: str, query: Any = None) -> Answer:
            return Answer(self.code, '{"message": "is forbidden"}')

    api = Refusing(with_namespace(cluster(Timeline(START), random.Random(1))), OURS)
    assert {(line.status, line.fix) for line in look(api).values()} == {
        (Status.UNKNOWN, "apply deploy/observe.yaml of this version")
    }
    api.code = 404
    assert {(line.status, line.fix) for line in look(api).values()} == {(Status.WARNING, "they need Kubernetes 1.30")}
