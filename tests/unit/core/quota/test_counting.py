"""How quota counts shares of GPUs and MIG instances under a policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autopilot.core.model.policy import Policy, RuleSetName, Tenancy
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.core.placement.whatif import WhatIf
from autopilot.core.planning.quota_state import Quota, build_quota
from autopilot.core.quota.ledger import ALL
from tests.kits.core_world import holds, queue_tree, snapshot, waits
from tests.kits.hardware_world import PROFILES

OURS, KUEUE = RuleSetName.HIERARCHICAL_FAIR_SHARE, RuleSetName.COHORT_CLASSIC
SMALL = PROFILES.index("1g.10gb")
TREE = queue_tree(("a", 0, 0), ("b", 0, 0))


def quota(snap: ClusterSnapshot, rules: RuleSetName, *, parts: bool = False) -> Quota:
    """The books under a rule set."""
    policy = Policy(rules=rules, tenancy=replace(Tenancy(), instance_parts=parts))
    return build_quota(snap, policy, WhatIf(snap), np.zeros(len(snap.workloads.id)))


@pytest.mark.parametrize(("rules", "used"), [(OURS, 0.5), (KUEUE, 2.0)])
def test_shares_of_requested_gpus_count_as_parts_and_under_kueue_as_requests(rules: RuleSetName, used: float) -> None:
    """Kueue counts a replica as the GPU that its pod requests, in the flavor of its nodes."""
    snap = snapshot("1x4", [holds("two", 2, [0, 1], queue=1, gpus_per_member=2)], queues=TREE)
    snap = replace(snap, placements=replace(snap.placements, milli=np.full(2, 250, np.int32)))
    books = quota(snap, rules)
    assert books.ledger.use[ALL][1] == used
    assert [each.gpus for each in books.running()] == [used]
    books.book(0, WhatIf(snap).layout_of(0), -1)
    assert books.ledger.use[ALL][1] == 0.0


@pytest.mark.parametrize(
    ("rules", "parts", "used", "asked"),
    [(OURS, False, 1.0, 2.0), (OURS, True, 1 / 7, 2 / 7), (KUEUE, True, 1.0, 2.0)],
)
def test_instances_count_as_parts_by_a_setting(rules: RuleSetName, parts: bool, used: float, asked: float) -> None:
    """Off by default; Kueue's rules count an instance as a GPU in any case."""
    cuts = {0: [("1g.10gb", start) for start in range(7)]}
    work = [holds("a", 1, [0], queue=1, mig_profile=SMALL), waits("b", 2, queue=2, mig_profile=SMALL)]
    snap = snapshot("1x2", work, queues=TREE, cuts=cuts)
    books = quota(snap, rules, parts=parts)
    assert books.ledger.use[ALL][1] == pytest.approx(used)
    assert books.claim(1, 2).gpus == pytest.approx(asked)
    assert books.ledger.capacity[ALL] == pytest.approx(2.0 if parts and rules is OURS else 8.0)
