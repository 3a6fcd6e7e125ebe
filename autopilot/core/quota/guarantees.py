"""How the guarantee of each queue is kept, and the policy that follows where one is not strict.

A queue states it, else the nearest queue above it, else the policy. Where the guarantee of any queue is elastic or
none, queues share time, and the order has the weights of `elastic` in the policy. Those weights hold for all queues:
to share time, their gangs are compared by one index.
"""

from __future__ import annotations

from dataclasses import replace

from autopilot.core.model.policy import GuaranteeRule, Policy, RuleSetName, Tenancy
from autopilot.core.model.policy.tenancy import GUARANTEES_KEPT
from autopilot.core.model.snapshot import QueueTable


def guarantee_rules(tenancy: Tenancy, queues: QueueTable) -> tuple[GuaranteeRule, ...]:
    """The rule of each queue."""
    found: list[GuaranteeRule] = []
    for stated, parent in zip(queues.guarantee_kept.tolist(), queues.parent.tolist(), strict=True):
        above = found[parent] if 0 <= parent < len(found) else tenancy.guarantee
        found.append(GuaranteeRule(GUARANTEES_KEPT[stated]) if stated else above)
    return tuple(found)


def policy_in_force(policy: Policy, queues: QueueTable) -> Policy:
    """The policy with time sharing and its order, if the guarantee of a queue is not strict; else `policy` itself.

    Another set of rules, or a policy in which work of one queue shares no time, decides itself what queues take.
    """
    rules = guarantee_rules(policy.tenancy, queues)[1:]  # the root has no work of its own
    shares = policy.preemption.time_sharing and policy.rules is RuleSetName.HIERARCHICAL_FAIR_SHARE
    if not shares or all(rule is GuaranteeRule.STRICT for rule in rules):
        return policy
    own = policy.elastic
    return replace(
        policy,
        order=replace(
            policy.order,
            hazard_weight=own.hazard_weight,
            width_exponent=own.width_exponent,
            aging_s=own.aging_s,
            aging_exponent=own.aging_exponent,
        ),
        tenancy=replace(policy.tenancy, time_sharing=True, usage_half_life_s=own.usage_half_life_s),
        preemption=replace(policy.preemption, index_ratio=own.index_ratio),
    )
