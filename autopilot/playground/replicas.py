"""Services of the simulator as Deployments, and their replicas as pods, each with a Workload of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autopilot.contract import PREFIX
from autopilot.core.model.snapshot import SloClass, State
from autopilot.playground import conditions, pods
from autopilot.playground.gangs import PODS, WORKLOADS, Gang, GangObjects
from autopilot.playground.mirror import Key
from autopilot.playground.naming import QUEUE, suffix, workload_name
from autopilot.playground.shapes import contract_of, members_of, requests_of
from simulator.inference.deployments import Deployment
from simulator.world.cluster import Cluster

Obj = dict[str, Any]
DEPLOYMENTS, REPLICA_SETS = "deployments.apps", "replicasets.apps"


@dataclass(slots=True)
class Service:
    """One service and the names of its objects."""

    deployment: Deployment
    namespace: str
    name: str
    queue: str
    uid: str = ""
    set_uid: str = ""

    @property
    def hash(self) -> str:
        """The hash of its pod template, constant here."""
        return suffix(self.deployment.name, 9)

    @property
    def set_name(self) -> str:
        """Its ReplicaSet."""
        return f"{self.name}-{self.hash}"


class ReplicaObjects:
    """Builds the objects of services and replicas from the world as it is."""

    def __init__(self, cluster: Cluster, gangs: GangObjects, node_names: list[str]) -> None:
        self._cluster, self._gangs, self._nodes = cluster, gangs, node_names

    def service(self, service: Service, first: int, wanted: int, ready: int) -> Iterator[tuple[str, Obj]]:
        """Deployment, then ReplicaSet with the Deployment's uid. `first`: any replica of it, for its shape."""
        labels = {"app": service.name}
        template = self._template(service, first)
        status = {"replicas": wanted, "readyReplicas": ready, "availableReplicas": ready, "observedGeneration": 1}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {
                "name": service.name,
                "namespace": service.namespace,
                "labels": {"kueue.x-k8s.io/queue-name": QUEUE},
            },
            "spec": {"replicas": wanted, "selector": {"matchLabels": labels}, "template": template},
            "status": status | {"updatedReplicas": wanted},
        }
        yield DEPLOYMENTS, deployment
        pod_labels = labels | {"pod-template-hash": service.hash}
        replica_set = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": service.set_name,
                "namespace": service.namespace,
                "labels": pod_labels,
                "ownerReferences": [_owner("apps/v1", "Deployment", service.name, service.uid)],
            },
            "spec": {
                "replicas": wanted,
                "selector": {"matchLabels": pod_labels},
                "template": template | {"metadata": template["metadata"] | {"labels": pod_labels}},
            },
            "status": status | {"fullyLabeledReplicas": wanted},
        }
        yield REPLICA_SETS, replica_set

    def name_of(self, service: Service, replica: Gang) -> str:
        """The pod of a replica: another one after each stop."""
        row = replica.job
        return f"{service.set_name}-{suffix(f'{self._cluster.jobs.id[row]}/{self._cluster.incarnation[row]}')}"

    def pod(self, service: Service, replica: Gang, now_s: float) -> Obj:
        """The pod: behind Kueue's gate while it waits, then on its node."""
        cluster, row = self._cluster, replica.job
        created_s = self._gangs.real_s(replica.created_s)
        spec = dict(self._template(service, row)["spec"])
        held, of = cluster.held[row], replica.checks
        if of is not None and of.admitted:
            spec |= {"nodeSelector": of.selector} if of.selector else {}
            spec |= {"tolerations": list(of.tolerations)} if of.tolerations else {}
        if held is None and of is not None and of.admitted:
            status = pods.unplaced(of.since_s)
        elif held is None:
            gates = ("kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology")
            spec["schedulingGates"] = [{"name": each} for each in gates]
            status = pods.waiting(created_s)
        else:
            spec["nodeName"] = self._nodes[members_of(cluster, row)[0].node]
            bound_s = self._gangs.real_s(cluster.start_s[row])
            if cluster.state[row] == State.STARTING:
                status = pods.starting(created_s, bound_s)
            else:
                status = pods.running(created_s, bound_s, self._gangs.real_s(min(cluster.ready_s[row], now_s)))
        labels = {
            "app": service.name,
            "pod-template-hash": service.hash,
            "kueue.x-k8s.io/managed": "true",
            "kueue.x-k8s.io/queue-name": QUEUE,
        }
        metadata = {
            "name": replica.name,
            "namespace": service.namespace,
            "labels": labels,
            "annotations": self._contract(service, row),
            "ownerReferences": [_owner("apps/v1", "ReplicaSet", service.set_name, service.set_uid)],
        }
        return pods.pod(metadata, spec) | {"status": status}

    def workload(self, replica: Gang) -> Obj:
        """The Workload of the pod."""
        found = self._gangs.workload(replica)
        found["metadata"]["ownerReferences"] = [_owner("v1", "Pod", replica.name, replica.uid)]
        return found

    def key(self, replica: Gang) -> Key:
        """Of its pod."""
        return (PODS, replica.namespace, replica.name)

    def workload_key(self, replica: Gang) -> Key:
        """Of its Workload."""
        return (WORKLOADS, replica.namespace, workload_name("Pod", "", replica.name, replica.uid))

    def _contract(self, service: Service, row: int) -> dict[str, str]:
        found = contract_of(self._cluster, row)
        if service.deployment.slo_class == SloClass.LATENCY_CRITICAL:  # an objective of other work is refused
            found |= {f"{PREFIX}objective-s": f"{service.deployment.serving.objective_s:g}"}
        return found

    def _template(self, service: Service, row: int) -> Obj:
        shape = self._cluster.jobs.shape_of(row)
        spec = {"restartPolicy": "Always", "containers": [pods.container(requests_of(shape, shape.gpus))]}
        return {"metadata": {"labels": {"app": service.name}}, "spec": spec}


def admitted(replica: Gang, now_s: float, real_s: float) -> None:
    """Its quota is reserved and its gates are removed."""
    replica.start_s, replica.leaving = now_s, False
    if replica.checks is not None:
        return
    conditions.admitted(replica.life, replica.queue, real_s)


def _owner(version: str, kind: str, name: str, uid: str) -> Obj:
    return {
        "apiVersion": version,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
