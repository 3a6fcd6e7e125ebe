"""The levers, as one table: the first suitable one for the objects of an instruction is used.

One file for each lever.
"""

from __future__ import annotations

from collections.abc import Iterable

from actuators.kubernetes.levers import (
    admission_check,
    check_retry,
    deactivate,
    evict_pods,
    job_width,
    kueue_gate,
    mig_config,
    node_cordon,
    notice,
    offer_back,
    provisioning,
    scheduling_gates,
    service_ceiling,
    service_scale,
    sharing_config,
    step_pause,
    suspension,
)
from actuators.kubernetes.levers.base import Lever, Rule

LEVERS: tuple[Lever, ...] = (
    # admit: obstacles to its queue first, then obstacles to its start
    deactivate.RESUME,
    job_width.START,
    kueue_gate.LEVER,
    admission_check.LEVER,
    suspension.START,
    scheduling_gates.LEVER,
    # evict: milder levers first
    check_retry.LEVER,
    deactivate.STOP,
    suspension.STOP,
    evict_pods.LEVER,
    # other kinds
    job_width.RESIZE,
    service_scale.LEVER,
    service_ceiling.LEVER,
    mig_config.LEVER,
    sharing_config.LEVER,
    step_pause.LEVER,
    notice.LEVER,
    node_cordon.LEVER,
    provisioning.LEVER,
    offer_back.LEVER,
)

GROUP, ACTIONS = "gpu-autopilot.io", "actions"
"""A resource of no real objects. The right to `use` one by the name of a kind of instructions tells the admission
policy of the fields that the kind is enabled."""
EVENTS = Rule("events.k8s.io", "events", ("create",))
"""Every lever states its actions on its objects."""


def rules_for(kinds: Iterable[str], levers: Iterable[Lever] = LEVERS) -> tuple[Rule, ...]:
    """The rights for instructions of these kinds, merged by resource; none if no kind is enabled."""
    enabled = set(kinds)
    used = [lever for lever in levers if lever.kinds & enabled]
    asked = [rule for lever in used for rule in lever.rules] + ([EVENTS] if used else [])
    asked += [
        Rule(GROUP, ACTIONS, ("use",), (kind,))
        for kind in sorted({each for lever in used for each in lever.kinds & enabled})
    ]
    merged: dict[tuple[str, str, tuple[str, ...], bool], tuple[set[str], set[str]]] = {}
    for rule in asked:
        key = (rule.group, rule.resource, rule.names, rule.own_namespace)
        verbs, changes = merged.setdefault(key, (set(), set()))
        verbs.update(rule.verbs)
        changes.update(rule.changes)
    return tuple(
        Rule(group, resource, tuple(sorted(verbs)), names, own, tuple(sorted(changes)))
        for (group, resource, names, own), (verbs, changes) in sorted(merged.items())
    )
