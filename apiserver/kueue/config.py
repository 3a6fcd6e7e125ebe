"""Configuration of the manager: feature gates, waiting for ready pods, and the delays of its controllers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WaitForPodsReady:
    """Evict what is admitted but does not start: after `timeout_s`, with a growing backoff, at most `limit` times."""

    timeout_s: float = 300.0
    recovery_timeout_s: float | None = None
    block_admission: bool = False
    limit: int | None = None
    base_s: float = 60.0
    max_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class Delays:
    """How long the parts of the manager take, in seconds: medians of the sequences recorded with Kueue 0.19."""

    reconcile_s: float = 0.02  # from a change to the write that answers it
    cycle_s: float = 0.03  # from a workload in a queue to its admission
    first_s: float = 0.05  # from a new Workload to its first checks
    created_s: float = 0.13  # from a new Workload to its first condition PodsReady
    gone_s: float = 0.1  # from an owner that is gone to its Workload that is finished
    start_s: float = 0.02  # from the admission to the job that is resumed
    released_s: float = 0.06  # from a reservation that is dropped to the next look at the job
    edited_s: float = 0.005  # from an edit of a suspended job to the deletion of its Workload
    held_s: float = 0.003  # from a new flavor or check to its finalizer
    status_s: float = 1.0  # counts of queues are written in batches
    retry_s: float = 1.0  # workloads that were put aside are tried again in batches


@dataclass(frozen=True, slots=True)
class Config:
    """Configuration; the defaults are those of Kueue 0.19."""

    priority_boost: bool = False  # feature gate PriorityBoost
    wait_for_pods_ready: WaitForPodsReady | None = None
    reports_pods_ready: bool = True  # the condition PodsReady is written
    delays: Delays = field(default_factory=Delays)
