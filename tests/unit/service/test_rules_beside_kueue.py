"""The rule set beside a real cluster: that of the scheduler that owns the queues."""

from __future__ import annotations

import pytest

from autopilot.core.model.policy import Policy, RuleSetName
from autopilot.service.site import BesidePolicy


class _Stated:
    def __init__(self, rules: RuleSetName) -> None:
        self.policy = Policy(rules=rules)

    def current(self) -> Policy:
        return self.policy


FAIR = "ClusterQueue a has status.fairSharing"
OWN, CLASSIC, FAIRLY = RuleSetName.HIERARCHICAL_FAIR_SHARE, RuleSetName.COHORT_CLASSIC, RuleSetName.COHORT_FAIR


@pytest.mark.parametrize(
    ("stated", "engine", "sharing", "rules"),
    [
        (OWN, "kueue", "", CLASSIC),
        (OWN, "kueue", FAIR, FAIRLY),
        (CLASSIC, "kueue", FAIR, FAIRLY),
        (FAIRLY, "kueue", "", FAIRLY),  # whoever operates Kueue may know better
        (OWN, "namespaces", "", OWN),
    ],
)
def test_the_rules_are_those_of_the_scheduler_that_owns_the_queues(
    stated: RuleSetName, engine: str, sharing: str, rules: RuleSetName
) -> None:
    """Kueue's, fair where its objects say so; elsewhere those of the policy."""
    beside = BesidePolicy(_Stated(stated), lambda: engine, lambda: sharing)
    assert beside.current().rules == rules
    assert beside.current() is beside.current()


def test_the_rules_follow_a_manager_that_begins_to_share_fairly() -> None:
    """From the tick on in which an object says so."""
    known = [""]
    beside = BesidePolicy(_Stated(OWN), lambda: "kueue", lambda: known[0])
    assert beside.current().rules == CLASSIC
    known[0] = FAIR
    assert beside.current().rules == FAIRLY
