"""Parameters of admission policies: when the server sees them, and when it keeps old ones (recordings 38, 38b)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.server import Server
from apiserver.timeline import Timeline
from tests.kits.apiserver_kit import START, Asker

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
POLICIES = f"{REGISTRATION}/validatingadmissionpolicies"
BINDINGS = f"{REGISTRATION}/validatingadmissionpolicybindings"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SPACE = "/api/v1/namespaces/team"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["configmaps"]}
NODES = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]}
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "metadata": {"name": "epochs.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "epochs", "kind": "Epoch"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
    },
}


class World:
    """A namespace with a ConfigMap that policies guard, and parameters that hold a number as text."""

    def __init__(self, kind: str) -> None:
        self.server: Server = cluster(Timeline(START), random.Random(1))
        self.ask, self.kind = Asker(self.server), kind
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
        self.ask("POST", f"{SPACE}/configmaps", {"metadata": {"name": "guarded"}})
        if kind == "Epoch":
            self.ask("POST", DEFINITIONS, DEFINITION)
            self.server.timeline.run_for(5.0)

    @property
    def path(self) -> str:
        """Where parameters are."""
        return {
            "Epoch": "/apis/example.com/v1/namespaces/team/epochs",
            "Lease": "/apis/coordination.k8s.io/v1/namespaces/team/leases",
        }[self.kind]

    def parameter(self, name: str, number: int) -> None:
        """Write it."""
        notes: dict[str, Any] = {"metadata": {"name": name, "annotations": {"n": str(number)}}}
        if self.ask.response("GET", f"{self.path}/{name}").status == 200:
            self.ask("PATCH", f"{self.path}/{name}", notes)
        else:
            self.ask("POST", self.path, notes)

    def policy(self, name: str, rule: dict[str, Any] = RULE) -> None:
        """A policy that wants the number of its parameter or more."""
        version = "example.com/v1" if self.kind == "Epoch" else "coordination.k8s.io/v1"
        spec = {
            "paramKind": {"apiVersion": version, "kind": self.kind},
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "int(object.data.n) >= int(params.metadata.annotations['n'])"}],
        }
        self.ask("POST", POLICIES, {"metadata": {"name": name}, "spec": spec})

    def bind(self, policy: str, name: str, to: str = "p", absent: str = "Allow") -> None:
        """A binding of a policy to a parameter."""
        reference = {"name": to, "namespace": "team", "parameterNotFoundAction": absent}
        spec = {"policyName": policy, "paramRef": reference, "validationActions": ["Deny"]}
        self.ask("POST", BINDINGS, {"metadata": {"name": name}, "spec": spec})
        self.server.timeline.run_for(1.5)

    def unbind(self, path: str) -> None:
        """Delete a policy or a binding."""
        self.ask("DELETE", path)
        self.server.timeline.run_for(1.5)

    def least(self) -> int:
        """The smallest number that is accepted."""
        for number in range(10):
            body = {"data": {"n": str(number)}}
            if self.ask.response("PATCH", f"{SPACE}/configmaps/guarded", body, dryRun="All").status == 200:
                return number
        return 10


def bound(kind: str = "Lease") -> World:
    """The parameter says 3, one binding enforces it."""
    made = World(kind)
    made.parameter("p", 3)
    made.policy("guard")
    made.bind("guard", "one")
    assert made.least() == 3
    made.parameter("p", 4)
    assert made.least() == 4, "a change counts at once"
    return made


@pytest.mark.parametrize("gone", [f"{BINDINGS}/one", f"{POLICIES}/guard"])
def test_a_built_in_kind_freezes_with_its_last_binding(gone: str) -> None:
    """Whatever is applied later, the server compares with the contents of that moment until it restarts."""
    world = bound()
    world.unbind(gone)
    assert world.least() == 0
    world.parameter("p", 6)
    if gone.endswith("guard"):
        world.policy("guard")
        world.server.timeline.run_for(1.5)
    else:
        world.bind("guard", "one")
    assert world.least() == 4
    world.unbind(f"{world.path}/p")
    assert world.least() == 4, "a parameter that is deleted is still there"
    world.parameter("p", 7)
    world.policy("other")
    world.bind("other", "another")
    assert world.least() == 4, "for other policies too"
    world.parameter("fresh", 8)
    world.bind("other", "late", to="fresh")
    assert world.least() == 4, "one that came later does not exist"
    world.bind("other", "strict", to="fresh", absent="Deny")
    assert world.least() == 10
    world.server.uptime.start()
    assert world.least() == 8


def test_a_second_binding_that_stays_keeps_the_values_fresh() -> None:
    """Of another policy of the same kind of parameter, which need not match anything that is written."""
    world = bound()
    world.policy("keep", NODES)
    world.bind("keep", "keep")
    world.unbind(f"{BINDINGS}/one")
    world.parameter("p", 6)
    world.bind("guard", "one")
    assert world.least() == 6


def test_a_custom_kind_does_not_freeze() -> None:
    """Its informer is made anew."""
    world = bound("Epoch")
    world.unbind(f"{BINDINGS}/one")
    world.parameter("p", 6)
    world.bind("guard", "one")
    assert world.least() == 6


def test_a_condition_that_fails_refuses() -> None:
    """Unless another condition says that the policy does not apply (`failurePolicy: Fail`)."""
    world = bound()
    conditions = [{"name": "broken", "expression": "request.nothing == 'x'"}]
    world.ask("PATCH", f"{POLICIES}/guard", {"spec": {"matchConditions": conditions}})
    world.server.timeline.run_for(1.5)
    said = world.ask.refused(422, "PATCH", f"{SPACE}/configmaps/guarded", {"data": {"n": "9"}}, dryRun="All")
    assert "match condition 'broken'" in said
    conditions.append({"name": "not-for-it", "expression": "request.userInfo.username == 'nobody'"})
    world.ask("PATCH", f"{POLICIES}/guard", {"spec": {"matchConditions": conditions}})
    world.server.timeline.run_for(1.5)
    assert world.least() == 0


@pytest.mark.parametrize("part", ["matchConditions", "variables", "validations"])
def test_every_expression_of_a_policy_is_compiled_when_it_is_written(part: str) -> None:
    """A name that does not exist is refused in conditions and variables too."""
    world = World("Lease")
    spec = {"matchConstraints": {"resourceRules": [RULE]}, "validations": [{"expression": "true"}]}
    spec[part] = [{"name": "x", "expression": "nothing.there"}]
    said = world.ask.refused(422, "POST", POLICIES, {"metadata": {"name": "bad"}, "spec": spec})
    assert f"spec.{part}[0].expression" in said
