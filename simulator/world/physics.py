"""Durations of operations: start-up, restart, checkpoints, repartitioning of a GPU.

Three sets. `ideal` has no overheads, for comparison with published figures. `charged` is ideal plus a fixed cost of
every preemption and move. `real` models the costs of a cluster; each of its constants names its source. All times are
virtual seconds on a grid of 1/1024 s, so that differences of times are exact and GPU-seconds can be counted in
integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, isnan

TICKS_PER_S = 1024
"""Steps of virtual time in one second: a power of two, so that every time is an exact float."""


def on_grid(time_s: float) -> float:
    """The grid time nearest to `time_s`; infinity and NaN are unchanged."""
    if time_s - time_s != 0:
        return time_s
    return int(time_s * TICKS_PER_S + 0.5) / TICKS_PER_S


def up_to_grid(time_s: float) -> float:
    """The first grid time not before `time_s`; infinity and NaN are unchanged."""
    if time_s - time_s != 0:
        return time_s
    return ceil(time_s * TICKS_PER_S) / TICKS_PER_S


@dataclass(frozen=True, slots=True)
class Physics:
    """The overheads of one simulated world. A rate of infinity: the transfer takes no time."""

    name: str
    flat_loss_s: float = 0.0  # progress lost by each preemption, move or failure, regardless of checkpoints
    flat_restore_s: float = 0.0  # added to each restart
    image_pull_s: float = 0.0  # first start of a tenant's kind of work on a node
    container_start_s: float = 0.0
    load_s: float = 0.0  # program and pipeline
    weights_gib: float = 0.0  # of a service's model
    load_gib_per_s: float = inf  # weights from the store to one node
    checkpoint_gib_per_s: float = inf  # one gang's write or read
    store_gib_per_s: float = inf  # all writes together
    checkpoint_gib_per_gpu: float = 0.0  # default where the job states none
    checkpoint_interval_s: float = 0.0  # default where the job states none; 0: progress is never lost
    grace_s: float = 0.0  # longest wait for a checkpoint before the work is stopped without one
    resize_s: float = 0.0  # a resized gang reconnects and loads its state; it keeps its progress
    mig_reconfigure_s: float = 0.0

    @property
    def free_start(self) -> bool:
        """True if a first start takes no time at all."""
        return self.image_pull_s + self.container_start_s + self.load_s == 0 and self.load_gib_per_s == inf

    @property
    def writes_checkpoints(self) -> bool:
        """True if an eviction takes the time of writing a checkpoint."""
        return self.checkpoint_gib_per_s < inf

    def checkpoint_size_gib(self, stated_gib: float, gpus: int) -> float:
        """Size of a gang's checkpoint: as stated, else by its width."""
        return stated_gib if not isnan(stated_gib) else self.checkpoint_gib_per_gpu * gpus

    def write_s(self, size_gib: float) -> float:
        """Time of one undisturbed checkpoint write or read."""
        return size_gib / self.checkpoint_gib_per_s

    def first_start_s(self, service: bool, stated_s: float, image_cached: bool) -> float:
        """From placement to the first useful step of work starting from nothing.

        `stated_s` is the owner's figure for a restart (NaN: unknown); for a service, this is its load.
        """
        pull_s = 0.0 if image_cached else self.image_pull_s
        if not service:
            return pull_s + self.container_start_s + self.load_s
        if not isnan(stated_s) and self.load_gib_per_s < inf:
            return pull_s + self.container_start_s + stated_s
        return pull_s + self.container_start_s + self.load_s + self.weights_gib / self.load_gib_per_s

    def restart_s(self, stated_s: float, checkpoint_gib: float, image_cached: bool) -> float:
        """From placement to the first useful step of work stopped before.

        `stated_s` is the owner's figure for container, load and checkpoint read together; NaN: unknown.
        """
        if self.name in {IDEAL.name, CHARGED.name}:
            return self.flat_restore_s
        pull_s = 0.0 if image_cached else self.image_pull_s
        if not isnan(stated_s):
            return pull_s + stated_s
        return pull_s + self.container_start_s + self.load_s + self.write_s(checkpoint_gib) + self.flat_restore_s


IDEAL = Physics("ideal")

CHARGED = Physics(
    "charged",
    # A stop loses a minute of work and takes half a minute to restore: the cost in the study that B4 and B5 compare
    # with.
    flat_loss_s=60.0,
    flat_restore_s=30.0,
    # A gang that grows or shrinks keeps its progress and pauses as long as after a restore: it reconnects and
    # loads its state. Pollux measured the same 30 s (see `real`).
    resize_s=30.0,
)

REAL = Physics(
    "real",
    # A 20 GB image of CUDA, framework and program: 5-6 min of pull and 3-4 min of unpacking on a node that has
    # never seen it, reported by BentoML ("Cold-Starting LLMs on Kubernetes", 2025). Base layers are usually
    # there: a third of it.
    image_pull_s=180.0,
    # Container start about 1 s (Union.ai, "container cold boot", 2025) plus interpreter, CUDA context and
    # rendezvous: 10-60 s for servers of 7B models (Krylox, "LLM cold start", 2025); the low end.
    container_start_s=15.0,
    # Median pipeline load of the services of Alibaba GenTD26: 8.8 s (10th and 90th percentile 4.2 and 28.1 s).
    load_s=8.8,
    # The same trace loads a base model of 5-7 GB in 23.0 s (median, 3.2 s when cached): 0.3 GB/s from the store.
    load_gib_per_s=0.28,
    # Llama 3.1 8B: 15 GB of weights (BentoML, as above).
    weights_gib=14.0,
    # Assumptions, not measurements: a gang writes at most 1 GB/s to a shared file store of 5 GB/s.
    checkpoint_gib_per_s=0.93,
    store_gib_per_s=4.66,
    # BLOOM 176B wrote 2.3 TB with optimizer states from 384 GPUs (BigScience, 2022): 5.6 GiB a GPU.
    checkpoint_gib_per_gpu=5.6,
    # Training runs save every 15 to 30 minutes (NVIDIA, "Cut Checkpoint Costs with About 30 Lines of Python and
    # nvCOMP", 2026); the longer of the two loses more and is taken.
    checkpoint_interval_s=1800.0,
    # Two minutes, as a spot notice of the large clouds.
    grace_s=120.0,
    # The time that Pollux (OSDI 2021, section 5.3, "Simulator fidelity") gives each job whose GPUs change, from
    # checkpoints and restarts on its testbed. PyTorch's elastic agent also stops and starts all workers when members
    # come or go. New members pull their image while the others continue: that is not waited for.
    resize_s=30.0,
    # MIG manager stops the node's GPU clients, repartitions, starts them again and waits for the device plugin and the
    # exporter: an assumption of two scrapes and two plugin registrations, not a measurement.
    mig_reconfigure_s=60.0,
)

PHYSICS = {physics.name: physics for physics in (IDEAL, CHARGED, REAL)}
"""The sets by their name for `--physics`."""
