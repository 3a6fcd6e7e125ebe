"""Labels and annotations that tell other controllers to leave a pod or node alone. The autopilot obeys them too."""

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
    "scheduling.koordinator.sh/eviction-cost": "2147483647",  # the largest means never
    "nvidia.com/gpu-driver-upgrade-drain.skip": "true",
}
"""Labels and annotations for cluster-autoscaler, Karpenter, the descheduler, Volcano, KAI, Koordinator and the GPU
operator, with the values that say so, as regular expressions.
"""

_NAMES = frozenset(NOT_EVICTED)


def stays(*found: Mapping[str, str] | None) -> bool:
    """True if annotations or labels say so."""
    for values in found:
        if not values or _NAMES.isdisjoint(values):
            continue
        for name in _NAMES & values.keys():
            if re.fullmatch(NOT_EVICTED[name], values[name].strip().lower()):
                return True
    return False
