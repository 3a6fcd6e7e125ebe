"""The rights required by the settings beside reading: of each kind of instruction, of leading, of our resources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from actuators.kubernetes.levers import rules_for
from actuators.kubernetes.rights import probe_rules
from autopilot.crds.roles import SERVICE_RULES
from autopilot.readiness.line import Right
from autopilot.readiness.manifest import leading_rules
from autopilot.service.acting import enabled_levers
from autopilot.service.settings import Kubernetes


def further_rights(settings: Kubernetes) -> tuple[Right, ...]:
    """Rights for `autopilot check` beside the table of reading, each with its granting file."""
    found: list[Right] = []
    if settings.act:
        kinds = {kind for lever in enabled_levers(settings) for kind in lever.kinds}
        for kind in sorted(kinds & set(settings.act_kinds or kinds)):
            found += [
                Right(
                    rule.group,
                    rule.resource,
                    f"instructions of kind {kind}",
                    needed=True,
                    verbs=rule.verbs,
                    own_namespace=rule.own_namespace,
                    name=name,
                    fix=f"apply deploy/act/{kind}.yaml, or set act.{kind} of the chart",
                )
                for rule in rules_for([kind])
                for name in rule.names or ("",)
            ]
        if settings.sharing_probe_image and "set_sharing" in kinds:
            fix = "apply deploy/act/set_sharing-probe.yaml; the chart does for settings.kubernetes.sharing_probe_image"
            found += _of(probe_rules(), "probe pods of shared nodes", fix, own_namespace=True)
    if settings.lease is not None:
        fix = "apply deploy/lead.yaml; for another namespace or Lease change the names in it"
        found += _of(leading_rules(settings.lease.name), "the election of the leader", fix, own_namespace=True)
    if settings.recommendations or settings.policy_object is not None:
        found += _of(SERVICE_RULES, "control resources", "apply deploy/crds/", own_namespace=False)
    return tuple(found)


def _of(rules: Iterable[Mapping[str, Any]], why: str, fix: str, *, own_namespace: bool) -> Iterator[Right]:
    """Rules of a role, one right for each resource. One name stands for all of its rule: they are granted together."""
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for name in (rule.get("resourceNames") or [""])[:1]:
                    verbs = tuple(rule["verbs"])
                    yield Right(
                        group, resource, why, needed=True, verbs=verbs, own_namespace=own_namespace, name=name, fix=fix
                    )
