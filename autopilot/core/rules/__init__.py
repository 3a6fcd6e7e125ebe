"""Who may start, and who may take what from whom: one file a rule set, RULES is the table.

A rule set is a few pure functions over the quota books. The planner asks the set that `policy.rules` names
for every admission, preemption and reclaim; the conformance cases go the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autopilot.core.quota.ledger import QuotaLedger
from autopilot.core.rules import cohort, cohort_fair, elastic_quota, hierarchical
from autopilot.core.rules.base import Claim, MayStart, Takes


@dataclass(frozen=True, slots=True)
class RuleSet:
    """One set of rules. `within` and `across` answer whom a gang may displace in its own and in other queues.

    `keeps`: GPUs of idle quota that stay reserved for a gang that waits; `head_key`: order among the first gangs
    of all queues (None: the queue tree by saturation); `at_once`: a gang displaces when its turn comes, not after
    all others have looked for idle capacity. `owed`: may the gang take by contract?
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
"""By the name that `policy.rules` takes."""
