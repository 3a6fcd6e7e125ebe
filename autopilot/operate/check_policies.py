"""The admission policies for these settings, as shipped with this version."""

from __future__ import annotations

from collections.abc import Sequence

from actuators.kubernetes.field_policy import field_policies
from autopilot.readiness.fence import fence_policy
from autopilot.readiness.line import Policies, Shipped
from autopilot.service.settings import Kubernetes

FIELDS = "apply deploy/fields.yaml of this version, or set fields.enabled of the chart"
FENCE = (
    "apply deploy/crds/epochs.yaml, deploy/lead.yaml and deploy/fence.yaml of this version, or set fence.enabled of "
    "the chart"
)


def shipped_policies(settings: Kubernetes) -> Policies | None:
    """Reference policies of `autopilot check`; None while no effects are enabled. Without a Lease nothing is fenced."""
    if not settings.act:
        return None

    def of(account: str) -> Sequence[Shipped]:
        ours, ours_bound, watched, watched_bound = field_policies(settings.namespace, [account])
        found = [
            Shipped(ours, ours_bound, FIELDS, "a stolen token of the service may change whole objects"),
            Shipped(watched, watched_bound, FIELDS, "a stolen token of the watchdog may change whole objects"),
        ]
        if settings.lease is not None:
            policy, binding = fence_policy(settings.namespace, account, settings.lease.name)
            late = "what an earlier leader sends late is not refused"
            found.append(Shipped(policy, binding, FENCE, late, settings.lease.name))
        return found

    return of
