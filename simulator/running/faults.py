"""Injected faults, by seed: failing nodes and GPUs, reclaimed spot nodes, dying members of gangs, pods
stuck in termination, lost scrapes, and effects in conflict, failed or late.

Each source of faults draws from its own generator, named after the failing object: one more node or scrape changes
nothing for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import partial
from math import inf
from zlib import crc32

import numpy as np

from autopilot.core.model.errors import InputError
from simulator.running.engine import Engine
from simulator.world.cluster import Cluster
from simulator.world.facts import Started
from simulator.world.physics import TICKS_PER_S, up_to_grid
from simulator.world.recutting import Ending

# One error of each class, by the immediate action of NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors).
XID_CONTAINED = 94  # contained memory error: RESTART_APP
XID_UNCONTAINED = 95  # uncontained memory error: RESET_GPU
XID_OFF_THE_BUS = 79  # the GPU has fallen off the bus: RESTART_BM, the node's restart
XID_FIRMWARE_TIMEOUT = 119  # the GPU's firmware does not answer: RESET_GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions:
    """Kinds, rates and end of the faults. 0 means never; times are seconds, ratios are in [0, 1]."""

    until_s: float = inf  # no new fault from then on (existing ones are still repaired)
    node_mtbf_s: float = 0.0  # mean time between failures of one node
    node_mttr_s: float = 1800.0  # mean time to repair
    # Failures of one GPU break its work. The class of the XID decides what happens to the GPU: nothing (94, this ratio
    # of them), a reset (95, this ratio), a hang that only the error number reports (119, this ratio: the GPU stays
    # in use, and its work holds it for `member_hang_s`), or it is out until it is repaired (79, the rest).
    gpu_mtbf_s: float = 0.0
    gpu_app_ratio: float = 0.0
    gpu_reset_ratio: float = 0.0
    gpu_hang_ratio: float = 0.0
    gpu_reset_s: float = 60.0
    gpu_mttr_s: float = 3600.0
    member_mtbf_s: float = 0.0  # of one member of a gang without spare members
    member_hang_s: float = 600.0  # until the others notice: PyTorch's default timeout of an NCCL collective
    stuck_ratio: float = 0.0  # evictions whose pods do not terminate within the grace period
    stuck_s: float = 900.0  # mean time from the end of the grace period until they do
    # Evictions that are counted at once, while nobody stops the pods for `runs_on_s`: the Job controller stands still.
    runs_on_ratio: float = 0.0
    runs_on_s: float = 30.0
    spot_mtbr_s: float = 0.0  # mean time between reclaims of one spot node
    spot_at_s: float = 0.0  # all spot nodes are reclaimed at this time
    spot_notice_s: float = 120.0
    spot_away_s: float = 3600.0
    scrape_loss_ratio: float = 0.0
    view_loss_ratio: float = 0.0  # minutes in which the cluster's lists are missing
    view_part_ratio: float = 0.0  # minutes in which they lack a part of the work, and are marked so
    recut_failure_ratio: float = 0.0  # changes of a MIG geometry that fail half-way
    recut_stuck_ratio: float = 0.0  # those that do not end until the node is repaired
    recut_ignored_ratio: float = 0.0  # those that report success and change nothing
    recut_repair_s: float = 1800.0  # mean time until a failed or stuck change is repaired
    conflict_ratio: float = 0.0  # effects that find the object changed
    failure_ratio: float = 0.0  # effects that fail and may be retried
    delay_ratio: float = 0.0  # effects that come late
    delay_s: float = 30.0  # mean delay of those

    def __post_init__(self) -> None:
        """Raise `InputError` naming the field out of range."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not value >= 0 or (field.name != "until_s" and value == inf):
                raise InputError(f"faults.{field.name}: {value!r} must be a finite number of 0 or more")
            if field.name.endswith("_ratio") and value > 1:
                raise InputError(f"faults.{field.name}: {value!r} is a ratio; write a number from 0 to 1")
        if self.view_loss_ratio + self.view_part_ratio > 1:
            raise InputError("faults: view_loss_ratio and view_part_ratio together exceed 1")
        if self.conflict_ratio + self.failure_ratio + self.delay_ratio > 1:
            raise InputError("faults: conflict_ratio, failure_ratio and delay_ratio together exceed 1")
        if self.recut_failure_ratio + self.recut_stuck_ratio + self.recut_ignored_ratio > 1:
            raise InputError("faults: recut_failure_ratio, recut_stuck_ratio and recut_ignored_ratio together exceed 1")
        if self.gpu_app_ratio + self.gpu_reset_ratio + self.gpu_hang_ratio > 1:
            raise InputError("faults: gpu_app_ratio, gpu_reset_ratio and gpu_hang_ratio together exceed 1")


class FateKind(StrEnum):
    """The result of one effect."""

    DONE = "done"
    CONFLICT = "conflict"
    FAILED = "failed"
    LATE = "late"


class ViewFate(StrEnum):
    """The state of the cluster's lists."""

    WHOLE = "whole"
    PART = "part"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Fate:
    """The result of one effect; `delay_s` if it comes late."""

    kind: FateKind
    delay_s: float = 0.0


def child_generator(seed: int, name: str) -> np.random.Generator:
    """The generator of one named source under `seed`; equal arguments give equal draws, in any order of use."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(crc32(name.encode()),)))


_Act = Callable[[np.random.Generator, int, float], None]


class Faults:
    """The faults of one run."""

    def __init__(self, options: FaultOptions, seed: int) -> None:
        """Nothing happens before `arm`."""
        self.options, self.seed = options, seed
        self.injected = 0
        self._down: set[int] = set()
        self._reclaims: dict[int, float] = {}  # node -> when it will disappear

    def arm(self, engine: Engine, cluster: Cluster) -> None:
        """Schedule the first failure of every node and GPU on the engine."""
        self._engine, self._cluster, options = engine, cluster, self.options
        inventory = cluster.inventory
        for node, name in enumerate(inventory.nodes.id.tolist()):
            if options.node_mtbf_s:
                self._later(
                    child_generator(self.seed, f"node/{name}"),
                    options.node_mtbf_s,
                    0.0,
                    self._fail_node,
                    node,
                )
            if options.spot_mtbr_s and inventory.nodes.spot[node]:
                self._later(child_generator(self.seed, f"spot/{name}"), options.spot_mtbr_s, 0.0, self._notice, node)
            if inventory.nodes.spot[node] and 0 < options.spot_at_s < options.until_s:
                rng = child_generator(self.seed, f"spot-at/{name}")
                engine.at(options.spot_at_s, partial(self._wave, rng, node), essential=False)
        if options.gpu_mtbf_s:
            for gpu, uuid in enumerate(inventory.gpus.uuid.tolist()):
                self._later(child_generator(self.seed, f"gpu/{uuid}"), options.gpu_mtbf_s, 0.0, self._fail_gpu, gpu)
        if options.member_mtbf_s:
            cluster.observe(self)
        if options.stuck_ratio or options.runs_on_ratio:
            cluster.linger_s = self._linger_s
        if options.recut_failure_ratio or options.recut_stuck_ratio or options.recut_ignored_ratio:
            cluster.recuts.fate = self._recut_fate

    def _later(self, rng: np.random.Generator, mean_s: float, now_s: float, act: _Act, subject: int) -> None:
        at_s = now_s + float(rng.exponential(mean_s))
        if at_s < self.options.until_s:
            self._engine.at(at_s, lambda then_s: act(rng, subject, then_s), essential=False)

    def _fail_node(self, rng: np.random.Generator, node: int, now_s: float) -> None:
        options = self.options
        back_s = now_s + max(1.0, float(rng.exponential(options.node_mttr_s)))
        if self._take_down(node, now_s):
            self._engine.at(back_s, lambda then_s: self._bring_back(node, then_s))
        self._later(rng, options.node_mtbf_s, back_s, self._fail_node, node)

    def _take_down(self, node: int, now_s: float) -> bool:
        if node in self._down or self._cluster.growing.absent(node):
            return False
        self._down.add(node)
        self.injected += 1
        self._cluster.fail_node(node, now_s)
        return True

    def _bring_back(self, node: int, now_s: float) -> None:
        self._down.discard(node)
        self._cluster.restore_node(node, now_s)
        if node in self._reclaims:
            self._cluster.announce_reclaim(node, now_s, self._reclaims[node])

    def _notice(self, rng: np.random.Generator, node: int, now_s: float) -> None:
        """The cloud reclaims the node, and schedules the next reclaim."""
        back_s = self._call_back(rng, node, now_s)
        self._later(rng, self.options.spot_mtbr_s, back_s, self._notice, node)

    def _wave(self, rng: np.random.Generator, node: int, now_s: float) -> None:
        """The cloud reclaims all spot nodes at once, without a next time."""
        self._call_back(rng, node, now_s)

    def _call_back(self, rng: np.random.Generator, node: int, now_s: float) -> float:
        """The node takes no more work, disappears after the notice, and returns later."""
        options = self.options
        gone_s = now_s + options.spot_notice_s
        back_s = gone_s + max(1.0, float(rng.exponential(options.spot_away_s)))
        if node not in self._down and not self._cluster.growing.absent(node):
            self._reclaims[node] = up_to_grid(gone_s)
            self._cluster.announce_reclaim(node, now_s, self._reclaims[node])

            def take(then_s: float) -> None:
                del self._reclaims[node]
                if self._take_down(node, then_s):
                    self._engine.at(back_s, lambda later_s: self._bring_back(node, later_s))

            self._engine.at(gone_s, take)
        return back_s

    def _fail_gpu(self, rng: np.random.Generator, gpu: int, now_s: float) -> None:
        options = self.options
        out_s, xid = max(1.0, float(rng.exponential(options.gpu_mttr_s))), XID_OFF_THE_BUS
        if options.gpu_app_ratio or options.gpu_reset_ratio or options.gpu_hang_ratio:
            draw = float(rng.random())
            if draw < options.gpu_app_ratio:
                out_s, xid = 0.0, XID_CONTAINED
            elif draw < options.gpu_app_ratio + options.gpu_reset_ratio:
                out_s, xid = options.gpu_reset_s, XID_UNCONTAINED
            elif draw < options.gpu_app_ratio + options.gpu_reset_ratio + options.gpu_hang_ratio:
                xid = XID_FIRMWARE_TIMEOUT
        self.injected += 1
        if xid == XID_FIRMWARE_TIMEOUT:
            self._cluster.silence_gpu(gpu, now_s, xid, options.member_hang_s)
        else:
            self._cluster.fail_gpu(gpu, now_s, xid=xid, broken=out_s > 0)
        if out_s:
            self._engine.at(now_s + out_s, lambda then_s: self._cluster.restore_gpu(gpu, then_s))
        self._later(rng, options.gpu_mtbf_s, now_s + out_s, self._fail_gpu, gpu)

    # --- gangs and pods -------------------------------------------------------------------

    def on_started(self, fact: Started) -> None:
        """Draw the death of a member of this gang. A gang with spare members continues without one: not injected."""
        shape, options = self._cluster.jobs.shape_of(fact.job), self.options
        if not shape.whole or not shape.per_member < len(fact.gpus) <= shape.min_gpus:
            return
        name = f"member/{self._cluster.jobs.id[fact.job]}/{fact.incarnation}"
        members = -(-len(fact.gpus) // shape.per_member)
        rng = child_generator(self.seed, name)
        at_s = fact.at_s + float(rng.exponential(options.member_mtbf_s / members))

        def die(now_s: float) -> None:
            if self._cluster.incarnation[fact.job] == fact.incarnation:
                self.injected += self._cluster.lose_member(fact.job, now_s, options.member_hang_s) is None

        if at_s < options.until_s:
            self._engine.at(at_s, die, essential=False)

    def _linger_s(self, job: int, incarnation: int, now_s: float) -> float:
        """Stay of this work if it is evicted now (s): past its grace period, or as long as it is not stopped.

        0 for most.
        """
        options, name = self.options, f"{self._cluster.jobs.id[job]}/{incarnation}"
        rng = child_generator(self.seed, f"stuck/{name}")
        if now_s >= options.until_s:
            return 0.0
        if float(rng.random()) < options.stuck_ratio:
            self.injected += 1
            # The first instant past the grace period is one at which a scheduler can see that it is stuck.
            past_s = now_s + self._cluster.physics.grace_s + 1 / TICKS_PER_S
            self._engine.at(past_s, lambda _now_s: None, essential=False)
            return self._cluster.physics.grace_s + max(1.0, float(rng.exponential(options.stuck_s)))
        if float(child_generator(self.seed, f"runs-on/{name}").random()) >= options.runs_on_ratio:
            return 0.0
        self.injected += 1
        self._cluster.counted.add(job)
        return options.runs_on_s

    def _recut_fate(self, gpu: int, now_s: float) -> tuple[Ending, float]:
        """The end of a change of a MIG geometry, and the time until its repair (s)."""
        options = self.options
        rng = child_generator(self.seed, f"recut/{self._cluster.inventory.gpus.uuid[gpu]}/{now_s:.3f}")
        draw, repair_s = float(rng.random()), max(1.0, float(rng.exponential(options.recut_repair_s)))
        for ending, ratio in (
            (Ending.FAILED, options.recut_failure_ratio),
            (Ending.STUCK, options.recut_stuck_ratio),
            (Ending.IGNORED, options.recut_ignored_ratio),
        ):
            if draw < ratio and now_s < options.until_s:
                self.injected += 1
                return ending, repair_s
            draw -= ratio
        return Ending.DONE, repair_s

    # --- what the loop around the cluster asks --------------------------------------------

    def view(self, now_s: float) -> ViewFate:
        """The state of the cluster's lists in this minute."""
        options = self.options
        if now_s >= options.until_s or not options.view_loss_ratio + options.view_part_ratio:
            return ViewFate.WHOLE
        draw = float(child_generator(self.seed, f"view/{int(now_s // 60.0)}").random())
        if draw >= options.view_loss_ratio + options.view_part_ratio:
            return ViewFate.WHOLE
        self.injected += 1
        return ViewFate.LOST if draw < options.view_loss_ratio else ViewFate.PART

    def fate(self, effect: str, now_s: float) -> Fate:
        """The result of the effect with this id (a repeated attempt has another id)."""
        options = self.options
        if now_s >= options.until_s:
            return Fate(FateKind.DONE)
        rng = child_generator(self.seed, f"effect/{effect}")
        draw = float(rng.random())
        for kind, ratio in (
            (FateKind.CONFLICT, options.conflict_ratio),
            (FateKind.FAILED, options.failure_ratio),
            (FateKind.LATE, options.delay_ratio),
        ):
            if draw < ratio:
                self.injected += 1
                late_s = up_to_grid(float(rng.exponential(options.delay_s))) if kind is FateKind.LATE else 0.0
                return Fate(kind, late_s)
            draw -= ratio
        return Fate(FateKind.DONE)
