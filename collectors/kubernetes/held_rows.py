"""The row of unreadable running work: it keeps its GPUs, and is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from autopilot.contract import MOST_GPUS
from autopilot.core.model.snapshot import SloClass, State
from collectors.kubernetes.gang_life import stops
from collectors.kubernetes.gang_rows import Cluster, identity
from collectors.kubernetes.gangs import Gang, PodFacts


def held_values(gang: Gang, cluster: Cluster, holding: Sequence[PodFacts], last: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of unreadable running work: its holdings, else its last statement. It is left alone."""
    units = min(sum(each.ask.units for each in holding), MOST_GPUS)
    leaving = all(each.leaving for each in holding) or stops(gang)
    state = State.CHECKPOINTING if leaving else State.RUNNING
    size = {"gpus": units, "gpus_per_member": max(each.ask.units for each in holding), "min_gpus": units}
    return {
        **_UNKNOWN,
        **({name: min(value, MOST_GPUS) for name, value in size.items()}),
        **last,
        **identity(gang, holding[0], cluster),
        "state": int(state),
        "gate": 0,
        "incarnation": max(gang.incarnation, last.get("incarnation", 0)),
        "start_s": min(each.bound_s for each in holding),
        "ended_s": nan,
        "preemptible": False,
        "excluded": True,
    }


_UNKNOWN: Mapping[str, Any] = {
    "gpu_milli": 0,
    "mig_profile": -1,
    "cpu_milli": 0,
    "memory_mib": 0,
    "slo_class": int(SloClass.BATCH),
    "priority": 0,
    "selector": 0,
    "topology": 0,
    "preferred": 0,
    "preemption_delay_s": 0.0,
    "limit_s": nan,
    "checkpoint_interval_s": nan,
    "checkpoint_write_s": nan,
    "checkpoint_on_request": False,
    "restart_s": nan,
    "gpu_memory_mib": 0,
    "gpu_models": 0,
    "submit_s": 0.0,
    "queue": 0,
    "stale_since_s": nan,
    "lacking_pods": 0,
    "scheduler_quota": 0,
    "last_checkpoint_s": nan,
    "prefers": 0,
    "trust": 0,
    "share": 0,
    "image": "",
    "pausing": 0,
    "steps_per_s": nan,
}
"""The columns of a row of work with nothing known but its GPUs."""
