"""Planted bugs for the guards: the world of each, the action that does harm in it, and what the cluster lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autopilot.app.runs.world import World
from autopilot.controller import Controller
from autopilot.core.effects.admit import AdmitDraft
from autopilot.core.effects.draft import Case, Eviction, Propose, Submit
from autopilot.core.effects.evict import EvictDraft
from autopilot.core.effects.pipeline import PipelineDraft
from autopilot.core.geometry.follow import geometry_of
from autopilot.core.geometry.recut import RecutDraft, recut_of
from autopilot.core.hardware.mig import Placement
from autopilot.core.model.objects import Sharing, SharingConfig
from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Batch
from autopilot.core.model.snapshot import GPU_MILLI, SloClass, State
from autopilot.core.model.work import holding_mask
from autopilot.core.placement.fit import find_fit
from autopilot.core.placement.shapes import Fit, shape_of
from autopilot.core.placement.whatif import Layout
from autopilot.core.planning.context import Context
from autopilot.settings import shipped_policy
from simulator.inference.autoscaler import AutoscalerSpec
from simulator.inference.deployments import Deployment, requests_for
from simulator.inference.serving_records import ServiceSpec
from simulator.inference.synthetic_requests import ServiceLoad
from simulator.running.simulation import Simulation
from simulator.specs.clusterfile import ClusterSpec, MigSpec, shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.world.facts import NodeChanged
from simulator.world.hardware import Hardware, Held, Refusal
from simulator.world.recutting import Recuts
from simulator.world.work import Jobs, Shape
from tests.kits.cluster_kit import gang, pool
from tests.simulation.kit import AUTOPILOT

HOUR_S = 3600.0


CALM = replace(shipped_policy("recommend"), name="calm", modes=AUTOPILOT.modes)
"""What we advise on a real cluster, and every action acts by itself."""


def world_of(jobs: Jobs, nodes: int = 2, spec: ClusterSpec | None = None) -> World:
    """Nodes of eight GPUs, run times known, no overheads: what goes wrong was planted."""
    spec = spec or shape_cluster(nodes, 8)
    return World("planted", 0, "ideal", spec, build_inventory(spec), (), durations="exact", telemetry="off", _jobs=jobs)


def full_with_backlog() -> World:
    """Sixteen long jobs hold everything; behind them wait short ones, which take what an eviction frees.

    Of the long ones four are latency-critical and four not preemptible. No short one lives to be a victim.
    """
    jobs = Jobs()
    for number in range(16):
        kind = SloClass.LATENCY_CRITICAL if number < 4 else SloClass.BATCH
        jobs.add(
            f"long-{number:02d}",
            "abcd"[number % 4],
            gang(1),
            0.0,
            6 * HOUR_S,
            slo_class=kind,
            preemptible=not 4 <= number < 8,
        )
    for number in range(60):
        jobs.add(f"short-{number:02d}", "abcd"[number % 4], gang(1), 10.0, 700.0)
    return world_of(jobs)


def slow_to_leave() -> World:
    """The same, where a checkpoint takes a minute and more to write."""
    world = full_with_backlog()
    world.physics = "real"
    jobs = world.jobs()
    jobs.checkpoint_gib = [80.0] * len(jobs)
    return replace(world, _jobs=jobs)


def half_empty() -> World:
    """Four jobs with room around them: who is evicted comes back to where it was. Now and then a small one passes."""
    jobs = Jobs()
    for number in range(4):
        jobs.add(f"job-{number}", "ab"[number % 2], gang(2), 0.0, 2 * HOUR_S)
    for number in range(20):
        jobs.add(f"passer-{number}", "c", gang(1), 60.0 + 300.0 * number, 30.0)
    return world_of(jobs)


def wide_gangs() -> World:
    """Gangs of sixteen and eight; one of them waits."""
    jobs = Jobs()
    for number, width in enumerate((16, 8, 16, 8)):
        jobs.add(f"gang-{number}", "a", gang(width), 60.0 * number, 1200.0)
    return world_of(jobs)


def steady_arrivals() -> World:
    """A small job every minute."""
    jobs = Jobs()
    for number in range(120):
        jobs.add(f"job-{number:03d}", "a", gang(1 + number % 4), 60.0 * number, 300.0)
    return world_of(jobs)


def one_wide_one_narrow() -> World:
    """A gang holds all of the cluster; behind it waits a job of one GPU."""
    jobs = Jobs()
    jobs.add("wide", "a", gang(16), 0.0, 2 * HOUR_S)
    jobs.add("narrow", "a", gang(1), 10.0, 600.0)
    return world_of(jobs)


def overrun_service() -> World:
    """Two replicas hold all of the cluster and get more calls than they can answer; behind them waits a job."""
    chat = Deployment(
        serving=ServiceSpec(
            name="chat", slots=1, prefill_tokens_per_s=8000.0, decode_tokens_per_s=40.0, objective_s=5.0
        ),
        tenant="web",
        autoscaler=AutoscalerSpec(target=0.6, min_replicas=2, max_replicas=2),
        initial_replicas=2,
        gpus_per_replica=8,
        load=ServiceLoad(name="chat", mean_rps=1.0),
    )
    jobs = Jobs()
    jobs.add("job", "web", gang(8), 10.0, 600.0)
    return replace(world_of(jobs), services=requests_for((chat,), horizon_s=HOUR_S))


def cut_gpus() -> World:
    """Two GPUs in MIG mode with seven small instances each; a small job passes every ten minutes."""
    small = MigSpec(2, tuple(Placement("1g.10gb", start) for start in range(7)))
    jobs = Jobs()
    for number in range(24):
        jobs.add(f"job-{number:02d}", "a", gang(1, profile="1g.10gb"), 600.0 * number, 900.0)
    world = world_of(jobs, spec=ClusterSpec("test", (pool("cut", 1, 2, mig=(small,)),), ()))
    world.physics = "real"  # a change takes time
    return world


def strangers() -> World:
    """A shared node, untrusted work of two tenants, and more of it than GPUs."""
    sliced = SharingConfig("time-slicing-4", Sharing.TIME_SLICING, 4)
    jobs = Jobs()
    for number in range(8):
        jobs.add(f"job-{number}", "ab"[number % 2], gang(1), 10.0 * number, HOUR_S)
    return world_of(jobs, spec=ClusterSpec("test", (pool("sliced", 1, 4, sharing=sliced),), ()))


def huddle(ctx: Context, submit: Submit) -> None:
    """Wants to start whatever waits beside the first work on a shared GPU."""
    for at in ctx.waiting():
        gpus = np.flatnonzero((ctx.whatif.gpu_used > 0) & (ctx.whatif.gpu_used <= 750))[:1].astype(np.int32)
        if len(gpus):
            layout = Layout(gpus, np.full(1, -1, np.int32), np.full(1, 250, np.int32))
            fit = Fit(layout, np.zeros(1, np.int32), 0.0, ())
            row = int(ctx.pending[at])
            draft = AdmitDraft(
                case=Case("share", "admit"), row=row, fit=fit, benefit_gpu_s=1e9, cost_gpu_s=0.0, evidence=()
            )
            ctx.plan.decide(at, submit(draft))


def swap(ctx: Context, submit: Submit) -> None:
    """Wants to cut every GPU into what it is not: large instances, then small ones."""
    _cut_all(ctx, submit, range(len(ctx.observation.snapshot.gpus.uuid)))


def demolish(ctx: Context, submit: Submit) -> None:
    """Wants to cut the GPUs that hold work."""
    _cut_all(ctx, submit, np.unique(ctx.observation.snapshot.placements.gpu).tolist())


def _cut_all(ctx: Context, submit: Submit, gpus: Sequence[int]) -> None:
    snapshot = ctx.observation.snapshot
    for gpu in gpus:
        present = geometry_of(snapshot, gpu)
        after = tuple(("1g.10gb", start) for start in range(7))
        if present == after:
            after = (("3g.40gb", 0), ("3g.40gb", 4))
        draft = RecutDraft(
            case=Case("regeometry", "recut"),
            benefit_gpu_s=1e9,
            cost_gpu_s=1.0,
            evidence=(),
            row=gpu,
            verb=recut_of(ctx, gpu, "cut", "instance", before=present, after=after),
        )
        submit(draft)


def three_hours(simulation: Simulation, _controller: Controller) -> None:
    """End the run then: without its guard the swap never ends."""
    simulation.engine.horizon_s = 3 * HOUR_S


class Destroys(Recuts):
    """Cuts GPUs without a look at what runs there."""

    def in_use(self, gpu: int) -> list[tuple[str, int]]:
        return []


def destroys(simulation: Simulation, controller: Controller) -> None:
    """The engine of the cluster destroys instances in use."""
    simulation.cluster.recuts.__class__ = Destroys
    three_hours(simulation, controller)


def churn(benefit_gpu_s: float) -> Propose:
    """Proposes to evict anything that runs, at a cost of 1 GPU-s: for work of the same tenant that never ran, or for no
    gain.
    """

    def propose(ctx: Context, submit: Submit) -> None:
        work = ctx.observation.snapshot.workloads
        new = ctx.pending[~ctx.plan.taken & (work.incarnation[ctx.pending] == 0)]
        left = Counter(work.tenant[new if benefit_gpu_s > 1.0 else np.arange(len(work.id))].tolist())
        for row in np.flatnonzero(holding_mask(work)).tolist():
            if left[int(work.tenant[row])] > 0:
                give = Eviction(row, "evict", None, len(ctx.whatif.layout_of(row)), 1.0)
                left[int(work.tenant[row])] -= submit(
                    EvictDraft(
                        case=Case("preempt", "evict"),
                        row=row,
                        benefit_gpu_s=benefit_gpu_s,
                        cost_gpu_s=1.0,
                        evidence=(),
                        evictions=(give,),
                    )
                )

    return propose


def halves(ctx: Context, submit: Submit) -> None:
    """Wants to start half of every gang that waits."""
    for at, row in enumerate(ctx.pending.tolist()):
        half = shape_of(ctx.observation.snapshot, row, int(ctx.observation.snapshot.workloads.gpus[row]) // 2)
        fit = find_fit(ctx.whatif, half, ctx.whatif.node_free, ctx.policy.placement, ctx.gpu_memory_mib)
        if isinstance(fit, Fit):
            ctx.plan.decide(
                at,
                submit(
                    AdmitDraft(
                        case=Case("admit_gang", "admit"),
                        row=row,
                        fit=fit,
                        benefit_gpu_s=1.0,
                        cost_gpu_s=0.0,
                        evidence=(),
                    )
                ),
            )


def careless(ctx: Context, submit: Submit) -> None:
    """Wants to start work on the first node, whatever the state of that node."""
    gpus = ctx.observation.snapshot.workloads.gpus
    for at, row in enumerate(ctx.pending.tolist()):
        idle = np.flatnonzero(ctx.whatif.gpu_used[:8] == 0)[: int(gpus[row])].astype(np.int32)
        if not ctx.plan.taken[at] and len(idle) == gpus[row]:
            layout = Layout(idle, np.full(len(idle), -1, np.int32), np.full(len(idle), GPU_MILLI, np.int32))
            fit = Fit(layout, np.zeros(1, np.int32), 0.0, ())
            ctx.plan.decide(
                at,
                submit(
                    AdmitDraft(
                        case=Case("admit_gang", "admit"),
                        row=row,
                        fit=fit,
                        benefit_gpu_s=1.0,
                        cost_gpu_s=0.0,
                        evidence=(),
                    )
                ),
            )


def sledgehammer(ctx: Context, submit: Submit) -> None:
    """Wants to stop the widest gang so that the first of those who wait can start."""
    work = ctx.observation.snapshot.workloads
    running = np.flatnonzero(work.state == State.RUNNING)
    if ctx.plan.taken.all() or not len(running):
        return
    at = int(np.flatnonzero(~ctx.plan.taken)[0])
    victim, row = int(running[np.argmax(work.gpus[running])]), int(ctx.pending[at])
    mark = ctx.whatif.checkpoint()
    held = ctx.whatif.evict(victim)
    fit = find_fit(
        ctx.whatif,
        shape_of(ctx.observation.snapshot, row),
        ctx.whatif.node_free,
        ctx.policy.placement,
        ctx.gpu_memory_mib,
    )
    ctx.whatif.rollback(mark)
    if isinstance(fit, Fit):
        ctx.plan.decide(
            at,
            submit(
                PipelineDraft(
                    case=Case("preempt", "pipeline"),
                    row=row,
                    fit=fit,
                    benefit_gpu_s=1e9,
                    cost_gpu_s=1.0,
                    evidence=(),
                    evictions=(Eviction(victim, "evict", None, len(held.gpu), 1.0),),
                )
            ),
        )


class PodByPod(Hardware):
    """Starts each pod for itself, as a cluster does that knows no gangs."""

    def take(self, job: int, shape: Shape, gpus: Sequence[int], instances: Sequence[int] = ()) -> Held | Refusal:
        return super().take(job, shape._replace(min_gpus=1, per_member=1), gpus, instances)


def pod_by_pod(simulation: Simulation, _controller: Controller) -> None:
    """The cluster has no notion of gangs."""
    simulation.cluster.hardware.__class__ = PodByPod


class Cordons:
    """What the API knows of cordons, beside the inventory. The node takes what is bound to it, as a kubelet does."""

    def __init__(self, inner: Collector) -> None:
        self._inner, self.name = inner, inner.name
        self._cordoned: set[int] = set()

    def on_node(self, fact: NodeChanged) -> None:
        self._cordoned.add(fact.node)

    def collect(self, now_s: float) -> Batch:
        batch = self._inner.collect(now_s)
        assert batch.inventory is not None
        nodes = batch.inventory.nodes
        cordoned = np.isin(np.arange(len(nodes.id)), list(self._cordoned))
        return replace(batch, inventory=replace(batch.inventory, nodes=replace(nodes, cordoned=cordoned)))


def short_patience(simulation: Simulation, _controller: Controller) -> None:
    """Give up soon where nothing will ever start."""
    simulation.engine.stall_s = 2 * HOUR_S


def replicas_like_jobs(simulation: Simulation, controller: Controller) -> None:
    """The first replicas of the services may be preempted as jobs may."""
    jobs = simulation.cluster.jobs
    jobs.preemptible = [True] * len(jobs)
    short_patience(simulation, controller)


def cordoned_node(simulation: Simulation, controller: Controller) -> None:
    """The first node is cordoned at 1500 s."""
    wiring = controller._wiring
    cordons = Cordons(wiring.collectors[0])
    simulation.cluster.observe(cordons)
    controller._wiring = replace(wiring, collectors=[cordons, *wiring.collectors[1:]])
    cordon = NodeChanged(1500.0, 0, ready=True, cordoned=True)
    simulation.engine.at(1500.0, lambda _now_s: simulation.cluster.publish(cordon))
