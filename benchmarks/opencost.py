"""OpenCost's allocation model beside metering, on the same pods, nodes and hours of a playground.

The formulas are those of the OpenCost specification v0.1 and of its queries: a workload costs max(request, usage) x
hours x hourly rate, a node costs its GPUs x hours x hourly rate, idle cost is the difference, and may be shared in
proportion to cost. A pod counts while its container runs (`kube_pod_container_status_running`), for the program between
its first and its last sample. A GPU has the price of the price file; CPU and memory, which we do not meter, cost 0.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from pathlib import Path
from typing import Any

from autopilot.app.options import SimulateOptions
from autopilot.app.runs.world import World, build_world
from autopilot.controller import Controller
from autopilot.core.model.records import Observation
from autopilot.metering.charges import FREE, Meter
from autopilot.metering.prices import Prices, load_prices
from autopilot.metering.segments import Store, metering_folder, open_store
from autopilot.metering.showback import Asked, Bill, Showback, showback
from autopilot.metering.spend import calendar_of
from autopilot.playground.live import controller_site, go_live
from autopilot.playground.stage import Stage, open_stage
from autopilot.service.metered import ServiceMeter
from autopilot.settings import shipped_policy
from benchmarks.kit import ended, options
from benchmarks.playground import INTERVAL_S, START, exporter_of, wiring_of

GPU = "nvidia.com/gpu"
"""The one resource that OpenCost's queries ask for (`resource="nvidia_com_gpu"`)."""
NEAR = 0.001
ROUNDED_S = 1.0
"""Kubernetes writes times in whole seconds."""
SAMPLED_S = 60.0
"""Between two scrapes of Prometheus, and the resolution of OpenCost's queries."""


@dataclass(slots=True)
class Ran:
    """One pod: when it was bound to its node, when its container ran and when that ended, in seconds since 1970."""

    namespace: str
    node: str
    gpus: int
    labels: Mapping[str, str]
    bound_s: float
    running_s: float = inf
    end_s: float = inf


class Pods:
    """The pods of a playground, from every change that its API server tells."""

    def __init__(self, stage: Stage) -> None:
        self._timeline = stage.server.timeline
        self.seen: dict[str, Ran] = {}
        for pod in stage.server.store.objects("pods"):
            self._take(pod)
        stage.server.store.listen("pods", lambda event: self._take(event.obj, gone=event.type == "DELETED"))

    def _take(self, pod: dict[str, Any], *, gone: bool = False) -> None:
        now_s = self._timeline.now_s
        about, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        if not spec.get("nodeName"):
            return
        requests = [each.get("resources", {}).get("requests", {}) for each in spec["containers"]]
        gpus = sum(int(each.get(GPU, 0)) for each in requests)
        ran = self.seen.setdefault(
            about["uid"], Ran(about["namespace"], spec["nodeName"], gpus, about.get("labels") or {}, now_s)
        )
        states = [each["state"] for each in status.get("containerStatuses") or ()]
        if gone or any("terminated" in each for each in states):
            ran.end_s = min(ran.end_s, now_s)
        elif any("running" in each for each in states):
            ran.running_s = min(ran.running_s, now_s)


@dataclass(frozen=True, slots=True)
class Side:
    """The pods and nodes of a run, and its metering."""

    pods: tuple[Ran, ...]
    gpu_hour: Mapping[str, float]  # by node
    gpus: Mapping[str, int]  # by node
    begin_s: float
    end_s: float
    store: Store
    prices: Prices

    def bills(self, by: str = "tenant") -> Showback:
        """Ours."""
        return showback(Asked(self.store, self.prices, calendar_of(self.store, self.prices)), by)


def side(
    world: World,
    until_s: float,
    folder: Path,
    labels: Sequence[str] = (),
    people: Callable[[Stage], None] | None = None,
) -> Side:
    """A playground with Kueue in charge, metered as the service does. `people`: what they create before it begins."""
    stage = open_stage(world, start=START)
    pods, prices = Pods(stage), load_prices()
    if people is not None:
        people(stage)
    with go_live(stage, tls=False) as live, stage.clock.hold():
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(live.api.kubeconfig())
        site, exporter = controller_site(live, kubeconfig), exporter_of(live)
        end_watch = site.watch(lambda _hurry: None)
        site.join(exporter)
        meter = ServiceMeter(folder / "run.journal", site.start_s, 1.0, INTERVAL_S)
        meter.join((site.collector, exporter), labels)

        def watch(observation: Observation, _: Any) -> None:
            meter.take(observation)

        controller = Controller(wiring_of(site, exporter, shipped_policy("recommend"), watch))
        begin_s = site.now_s()
        for number in range(int(until_s / INTERVAL_S) + 1):
            stage.clock.run_to(number * INTERVAL_S)
            with site.still():
                controller.tick(site.now_s())
        end_s = site.now_s()
        end_watch()
        meter.close()
    inventory, names = world.inventory, stage.projection.nodes.names
    kinds = zip(inventory.nodes.pool.tolist(), inventory.nodes.gpu_model.tolist(), strict=True)
    tariff = prices.at(begin_s)
    each = [tariff.gpu_hour(inventory.names.pools[pool], inventory.names.gpu_models[model]) for pool, model in kinds]
    return Side(
        tuple(pods.seen.values()),
        dict(zip(names, each, strict=True)),
        dict(zip(names, inventory.nodes.gpus.tolist(), strict=True)),
        begin_s,
        end_s,
        open_store(metering_folder(folder / "run.journal")),
        prices,
    )


@dataclass(frozen=True, slots=True)
class Allocation:
    """What OpenCost allocates to one owner: GPU-hours, their cost, and the cost with the idle cost shared."""

    gpu_h: float
    cost: float
    shared: float


def allocations(of: Side, owner: Callable[[Ran], str], hours: Callable[[Ran], float]) -> dict[str, Allocation]:
    """The allocation of each owner. Whole GPUs are requested, so max(request, usage) is the request."""
    gpu_h, cost = defaultdict[str, float](float), defaultdict[str, float](float)
    for ran in of.pods:
        mine = ran.gpus * hours(ran)
        gpu_h[owner(ran)] += mine
        cost[owner(ran)] += mine * of.gpu_hour[ran.node]
    whole = sum(cost.values())
    idle = node_cost(of) - whole
    return {
        name: Allocation(gpu_h[name], cost[name], cost[name] + idle * cost[name] / whole)
        for name in sorted(gpu_h)
        if gpu_h[name]
    }


def node_cost(of: Side) -> float:
    """Cost of all nodes: GPUs x hours x hourly rate."""
    return sum(gpus * of.gpu_hour[node] for node, gpus in of.gpus.items()) * (of.end_s - of.begin_s) / 3600


def run_hours(of: Side) -> Callable[[Ran], float]:
    """Hours in which the container ran."""
    return lambda ran: max(min(ran.end_s, of.end_s) - max(ran.running_s, of.begin_s), 0.0) / 3600


def bound_hours(of: Side) -> Callable[[Ran], float]:
    """Hours in which the pod held its GPUs: also while the container is created."""
    return lambda ran: max(min(ran.end_s, of.end_s) - max(ran.bound_s, of.begin_s), 0.0) / 3600


def sampled_hours(of: Side, step_s: float = SAMPLED_S) -> Callable[[Ran], float]:
    """Hours from the first to the last sample of a running container; one step where there is one sample."""

    def hours(ran: Ran) -> float:
        first = ceil(max(ran.running_s, of.begin_s) / step_s) if ran.running_s < inf else inf
        last = ceil(min(ran.end_s, of.end_s + step_s) / step_s) - 1
        last = min(last, floor(of.end_s / step_s))
        return 0.0 if last < first else max(last - first, 1) * step_s / 3600

    return hours


HEADS = (
    "namespace",
    "OpenCost GPU-h",
    "sampled",
    "creating",
    "ours GPU-h",
    "difference",
    "OpenCost cost",
    "idle shared",
    "charge",
    "active GPU-h",
    "idle",
    "unused guarantee",
)


def rows_of(of: Side) -> tuple[list[tuple[str, ...]], bool]:
    """A row for each namespace, and whether the GPU-hours of both sides agree within `NEAR`."""
    bills = {bill.name: bill for bill in of.bills().bills if not bill.name.startswith("(")}
    running, bound, sampled = (
        allocations(of, lambda pod: pod.namespace, hours(of)) for hours in (run_hours, bound_hours, sampled_hours)
    )
    none, rows, good = Allocation(0.0, 0.0, 0.0), [], True
    for name in sorted({*bills, *bound}):
        bill, theirs, held_h = bills.get(name, Bill(name)), running.get(name, none), bound.get(name, none).gpu_h
        off_h = bill.allocated_gpu_h - held_h
        changes = sum(each.gpus for each in of.pods if each.namespace == name)
        good &= abs(off_h) <= max(NEAR * held_h, changes * ROUNDED_S / 3600)
        hours = (theirs.gpu_h, sampled.get(name, none).gpu_h, held_h - theirs.gpu_h, bill.allocated_gpu_h)
        rows.append(
            (
                name,
                *(f"{each:,.2f}" for each in hours),
                f"{off_h / held_h:.3%}" if held_h else "-",
                *(f"{each:,.2f}" for each in (theirs.cost, theirs.shared, bill.charge)),
                *(f"{each:,.1f}" for each in (bill.active_gpu_h, bill.idle_gpu_h, bill.unused_gpu_h)),
            )
        )
    return rows, good


def idle_of(of: Side) -> tuple[float, dict[str, float]]:
    """The idle cost of OpenCost, and what it consists of by our rows, at list price."""
    found, at = of.bills(), {}
    running, bound = (
        sum(each.cost for each in allocations(of, lambda pod: pod.namespace, hours(of)).values())
        for hours in (run_hours, bound_hours)
    )
    for meter, cost in (found.charges["physical"] * found.charges["listed"]).groupby(found.charges["meter"]):
        at[str(meter)] = float(cost.sum())
    free = {str(name): at[name] for name in (Meter.UNUSED, *FREE) if at.get(name)}
    return node_cost(of) - running, {"containers created": bound - running, **free}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where GPU-hours differ by more than `NEAR`."""
    given = options(__doc__, arguments, scenario="demo", hours=8.0)
    hours = 0.5 if given.quick else given.hours
    with tempfile.TemporaryDirectory() as folder:
        found = side(build_world(SimulateOptions(scenario=given.scenario)), hours * 3600, Path(folder))
        rows, good = rows_of(found)
        idle, parts = idle_of(found)
        print(f"cost of the nodes: OpenCost {node_cost(found):,.2f}, ours {found.bills().capacity_cost:,.2f}")
        print(f"idle cost of OpenCost {idle:,.2f}: " + ", ".join(f"{name} {cost:,.2f}" for name, cost in parts.items()))
    figures = {"rows": [dict(zip(HEADS, row, strict=True)) for row in rows], "idle": parts}
    return ended(given, HEADS, rows, figures, sound=good)


if __name__ == "__main__":
    raise SystemExit(main())
