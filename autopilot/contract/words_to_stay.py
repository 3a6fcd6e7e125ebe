"""Words by which the owner of a pod or node tells other controllers to leave it as it is. They hold for us too."""

from __future__ import annotations

import re
from collections.abc import Mapping

NOT_EVICTED = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": r"true|\d.*",  # also for a time
    "karpenter.sh/do-not-evict": "true",
    "descheduler.alpha.kubernetes.io/prefer-no-eviction": ".*",  # the descheduler looks at no value
    "volcano.sh/preemptable": "false|f|0",  # as Go reads a bool
    "kai.scheduler/preemptibility": "(?:non|semi)-preemptible",
    "quota.scheduling.koordinator.sh/preemptible": "false",
}
"""Labels and annotations for cluster-autoscaler, Karpenter, the descheduler, Volcano, KAI and Koordinator, with the
values that say so, as regular expressions.
"""


def stays(*found: Mapping[str, str] | None) -> bool:
    """Whether annotations or labels say so."""
    return any(
        re.fullmatch(NOT_EVICTED[name], values[name].strip().lower()) is not None
        for values in found
        if values and not NOT_EVICTED.keys().isdisjoint(values)
        for name in NOT_EVICTED.keys() & values.keys()
    )
