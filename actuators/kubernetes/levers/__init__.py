"""The levers, as one table: the first that suits the objects of an instruction is used. One file for each lever."""

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
    suspension,
)
from actuators.kubernetes.levers.base import Lever, Rule

LEVERS: tuple[Lever, ...] = (
    # admit: what keeps the work out of its queue first, then what keeps it from starting
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
    notice.LEVER,
    node_cordon.LEVER,
    provisioning.LEVER,
    offer_back.LEVER,
)

EVENTS = Rule("events.k8s.io", "events", ("create",))
"""Every lever says on its objects what it does."""


def rules_for(kinds: Iterable[str], levers: Iterable[Lever] = LEVERS) -> tuple[Rule, ...]:
    """The rights that instructions of these kinds need, merged by resource; none where no kind is enabled."""
    enabled = set(kinds)
    used = [lever for lever in levers if lever.kinds & enabled]
    merged: dict[tuple[str, str, tuple[str, ...], bool], set[str]] = {}
    for rule in [*(rule for lever in used for rule in lever.rules), *([EVENTS] if used else [])]:
        merged.setdefault((rule.group, rule.resource, rule.names, rule.own_namespace), set()).update(rule.verbs)
    return tuple(
        Rule(group, resource, tuple(sorted(verbs)), names, own)
        for (group, resource, names, own), verbs in sorted(merged.items())
    )
