"""Configuration of the manager: feature gates, waiting for ready pods, and the delays of its controllers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WaitForPodsReady:
    """`waitForPodsReady` of the configuration: treatment of admitted work with unready pods."""

    timeout_s: float = 1800.0  # from the admission
    recovery_timeout_s: float | None = None  # from the first pod that failed; None: `timeout_s`, 0: for ever
    block_admission: bool = False  # nothing else is admitted until all admitted work is ready
    backoff_limit: int | None = None  # evictions for it before the Workload is deactivated; None: any number
    backoff_base_s: float = 60.0  # doubles with each eviction
    backoff_max_s: float = 3600.0

    def limit_s(self, reason: str) -> float:
        """Longest stay of a Workload in a reason of its condition PodsReady (s); 0 for any time."""
        if reason != "WaitForRecovery":
            return self.timeout_s
        return self.timeout_s if self.recovery_timeout_s is None else self.recovery_timeout_s


@dataclass(frozen=True, slots=True)
class Delays:
    """Latencies of the parts of the manager, in seconds: medians of the sequences recorded with Kueue 0.19."""

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
    wait_for_pods_ready: WaitForPodsReady | None = field(default_factory=WaitForPodsReady)  # None: not at all
    delays: Delays = field(default_factory=Delays)
