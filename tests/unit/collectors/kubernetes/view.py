"""A collector over a canned API server, stepped by hand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from autopilot.core.intake.assemble import assemble
from autopilot.core.model.records import Batch, Inventory, Work
from autopilot.core.model.snapshot import ClusterSnapshot, WorkloadTable
from autopilot.core.placement.shapes import carriers
from collectors.kubernetes.collector import KubernetesCollector, Options
from collectors.kubernetes.source import Cluster
from tests.kits.kube_api import Canned, Json
from tests.kits.kube_objects import EPOCH_S

NOW_S = EPOCH_S + 100.0


class Seen:
    """What the collector shows of some objects."""

    def __init__(self, *objects: Json, options: Options | None = None, **given: Any) -> None:
        self.api = Canned()
        self.api.put(*objects)
        self.now_s = NOW_S
        self.cluster = Cluster(self.api, lambda: self.now_s, rng=random.Random(1), **given.pop("source", {}))
        self.collector = KubernetesCollector(self.cluster, options, **given)

    def batch(self, *objects: Json, gone: tuple[Json, ...] = ()) -> Batch:
        """The batch after more objects, and without those that are gone (deletions are reported)."""
        if objects or gone:
            scripts: dict[str, list[bytes | Exception]] = {}
            start = len(self.api.log)
            self.api.put(*objects)
            for each in gone:
                self.api.remove(each)
            for _, path, event in self.api.log[start:]:
                scripts.setdefault(path.rpartition("/")[2], []).append(event)
            for name, events in scripts.items():
                self.api.scripts[name] = [events]
        for _ in range(3):
            self.cluster.step_all()
        return self.collector.collect(self.now_s)

    def tables(self, *objects: Json, gone: tuple[Json, ...] = ()) -> tuple[Inventory, Work]:
        """Inventory and work, which the core accepts."""
        batch = self.batch(*objects, gone=gone)
        assert batch.inventory is not None, batch.gaps
        assert batch.work is not None
        assemble([batch], self.now_s)
        return batch.inventory, batch.work

    def snapshot(self, *objects: Json) -> ClusterSnapshot:
        """The snapshot that the core makes of it."""
        return assemble([self.batch(*objects)], self.now_s)[0]


def row(work: Work, name: str) -> dict[str, Any]:
    """One workload by its id."""
    table: WorkloadTable = work.workloads
    (place,) = np.flatnonzero(table.id == name).tolist()
    return {column: getattr(table, column)[place] for column in WorkloadTable.__slots__}


def suited(seen: tuple[Inventory, Work], name: str) -> list[bool]:
    """Which nodes have the labels that a workload asks for."""
    inventory, work = seen
    return carriers(inventory.nodes, inventory.names.selectors[row(work, name)["selector"]]).tolist()  # type: ignore[no-any-return]


def held(seen: tuple[Inventory, Work], name: str) -> list[str]:
    """UUIDs (or instances) that a workload holds."""
    inventory, work = seen
    (place,) = np.flatnonzero(work.workloads.id == name).tolist()
    mine = np.flatnonzero(work.placements.workload == place)
    return [
        str(inventory.gpus.uuid[work.placements.gpu[each]])
        if work.placements.instance[each] < 0
        else str(inventory.instances.id[work.placements.instance[each]])
        for each in mine
    ]


def reasons(batch: Batch, signal: str = "") -> list[str]:
    """The gaps of a signal as texts: object and reason."""
    return [f"{gap.object_id}: {gap.reason}" for gap in batch.gaps if not signal or gap.signal == signal]
