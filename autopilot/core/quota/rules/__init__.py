"""Rule sets: which gang may start, and which gangs it may preempt. One file per rule set; RULES is the table.

A rule set is a few pure functions over the quota ledger. For each admission, preemption and reclaim, the planner asks
the rule set that `policy.rules` names. The conformance cases call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.quota.rules import cohort, cohort_fair, elastic_quota, hierarchical
from autopilot.core.quota.rules.base import Claim, MayStart, Takes


@dataclass(frozen=True, slots=True)
class RuleSet:
    """One rule set.

    `within` and `across` choose the victims of a gang in its own queue and in other queues. `keeps` returns the GPUs
    of idle quota that are held for a waiting gang. `head_key` orders the first gangs of all queues (None: the queue
    tree orders them by saturation). With `at_once`, a gang preempts as soon as it is first in order, not after all
    others have looked for idle capacity. `owed` tells whether the gang may preempt by contract.
    """

    may_start: MayStart
    within: Takes | None = None
    across: Takes | None = None
    keeps: Callable[[QuotaLedger, Claim], float] | None = None
    head_key: Callable[[QuotaLedger, Claim], tuple[float, ...]] | None = None
    at_once: bool = False
    owed: Callable[[QuotaLedger, Claim], bool] = hierarchical.owed


RULES: dict[str, RuleSet] = {
    hierarchical.NAME: RuleSet(hierarchical.may_start, hierarchical.within_queue, hierarchical.across_queues),
    "cohort-classic": RuleSet(
        cohort.may_start, None, cohort.targets, cohort.keeps, cohort.head_key, at_once=True, owed=cohort.owed
    ),
    "cohort-fair": RuleSet(
        cohort.may_start,
        None,
        cohort_fair.targets,
        cohort_fair.keeps,
        cohort_fair.head_key,
        at_once=True,
        owed=cohort.owed,
    ),
    "elastic-quota": RuleSet(
        elastic_quota.may_start, None, elastic_quota.targets, None, elastic_quota.head_key, at_once=True
    ),
}
"""The rule sets by name, as in `policy.rules`."""
