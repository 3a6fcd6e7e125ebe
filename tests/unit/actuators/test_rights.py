"""Rights of the levers. The other tests of this folder act with exactly those of the kind of each instruction."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.kubernetes.levers import LEVERS, rules_for
from actuators.kubernetes.rights import kinds
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.model.modes import Effect
from autopilot.service.acting import cluster_actuator
from autopilot.service.capping import NEEDS
from autopilot.service.settings import Kubernetes
from scripts.generate_act import TARGET, files


def test_the_committed_files_are_generated() -> None:
    """`python scripts/generate_act.py` writes them."""
    there = {path.name: path.read_text("utf-8") for path in TARGET.glob("*.yaml")}
    assert there == files(), "run: python scripts/generate_act.py"


def test_a_kind_that_is_off_asks_for_no_right() -> None:
    """Nothing is granted for nothing; starting work includes no right to evict."""
    assert rules_for([]) == ()
    admits = {(rule.resource, verb) for rule in rules_for(["admit"]) for verb in rule.verbs}
    assert not {("pods/eviction", "create"), ("deployments/scale", "patch")} & admits


OWN = {"pods/eviction", "configmaps", "provisioningrequests", "podtemplates"}


@pytest.mark.parametrize(
    ("kinds_on", "kept"), [([], 11), (["admit"], 5), (["provision"], 1), (["ceiling"], 1), (["evict"], 2)]
)
def test_the_upkeep_needs_the_rights_of_its_kinds(kinds_on: list[str], kept: int) -> None:
    """Without those of admissions our check is not answered by anybody, and no node gets a label of ours."""
    settings = Kubernetes(in_cluster=True, act=True, act_kinds=kinds_on)
    nothing: Any = None
    actuator = cluster_actuator(settings, nothing, nothing)
    assert actuator is not None
    assert len(actuator.upkeep) == kept


def test_no_lever_may_delete_or_create_work() -> None:
    """The only objects that are created are Events, evictions and our own."""
    for lever in LEVERS:
        for rule in lever.rules:
            assert "delete" not in rule.verbs or rule.resource == "provisioningrequests"
            assert "*" not in (rule.group, rule.resource, *rule.verbs)
            assert "create" not in rule.verbs or rule.resource in OWN


def test_every_lever_is_of_a_known_kind_and_every_effect_has_its_kinds() -> None:
    """Names of levers are unique; capping knows what each effect is made of."""
    assert len({lever.name for lever in LEVERS}) == len(LEVERS)
    assert set(kinds()) <= OPERATIONS.keys()
    assert NEEDS.keys() == set(Effect)
    assert {kind for needed in NEEDS.values() for kind in needed} <= OPERATIONS.keys()


def test_rules_of_one_resource_are_merged() -> None:
    """A resource is named once for each set of names."""
    rules = rules_for(OPERATIONS)
    keys = [(rule.group, rule.resource, rule.names, rule.own_namespace) for rule in rules]
    assert len(keys) == len(set(keys))
    (pods,) = [rule for rule in rules if rule.resource == "pods"]
    assert {"get", "patch"} <= set(pods.verbs)
