"""The table of the controllers of a cluster."""

from __future__ import annotations

from apiserver.actors.base import Actor
from apiserver.actors.deployments import Deployments
from apiserver.actors.disruption import Disruption
from apiserver.actors.garbage import GarbageCollector
from apiserver.actors.jobs import JobController
from apiserver.actors.namespaces import Namespaces
from apiserver.actors.pod_gc import PodGarbage
from apiserver.actors.replica_sets import ReplicaSets
from apiserver.actors.scheduler import Scheduler
from apiserver.actors.stateful_sets import StatefulSets
from apiserver.actors.taint_eviction import TaintEviction

ACTORS: tuple[type[Actor], ...] = (  # in the order in which they see a change
    JobController,
    ReplicaSets,
    Deployments,
    StatefulSets,
    Disruption,
    GarbageCollector,
    TaintEviction,
    PodGarbage,
    Scheduler,
    Namespaces,
)
