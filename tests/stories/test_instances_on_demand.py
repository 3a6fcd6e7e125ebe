"""Work that asks for MIG instances by resource claims, on a node whose driver makes instances on demand.

Nothing of what the pods ask for exists before they have it. They wait for our scheduling gate. The autopilot knows from
the counters in the driver's slices what each GPU could still give, selects the node, and opens the gate. Then the
scheduler chooses the device: in these stories always the last one that fits, which is not the one that was foreseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autopilot.contract.annotations import CONTROLLER
from tests.kits.acting_kit import PODS, Obj
from tests.kits.core_world import AUTO
from tests.kits.deciding_kit import Deciding
from tests.kits.dra_objects import DRIVER, PRODUCT, dynamic_slices, request

DRA = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DRA}/namespaces/default/resourceclaims"
ROOM = {"cpu": "64", "memory": "1Ti", "pods": "110"}


class Dynamic(Deciding):
    """Nodes with dynamic MIG, and the part of the scheduler that allocates claims."""

    def __init__(self, folder: Path) -> None:
        """Without nodes."""
        self._devices: dict[str, list[Obj]] = {}
        super().__init__(folder, AUTO, nodes=0)

    def add(self, name: str, gpus: int) -> None:
        """A node with so many GPUs, which its driver lists."""
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": PRODUCT.replace(" ", "-")}
        self.ask("POST", "/api/v1/nodes", _object("v1", "Node", {"name": name, "labels": labels}))
        ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
        status = {"capacity": ROOM, "allocatable": ROOM, **ready}
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})
        for each in dynamic_slices(name, gpus):
            meta = {"name": each["metadata"]["name"]}
            body = _object(f"{DRA[6:]}", "ResourceSlice", meta) | {"spec": each["spec"]}
            self.ask("POST", f"{DRA}/resourceslices", body)
            self._devices.setdefault(name, []).extend(each["spec"]["devices"])
        self.wait(4.0)

    def leave(self, name: str, profile: str = "", count: int = 1) -> None:
        """A pod behind our gate, and its claim for instances of a profile, or for whole GPUs."""
        spec = {"devices": {"requests": [request(profile, count)]}}
        self.ask("POST", CLAIMS, _object(DRA[6:], "ResourceClaim", {"name": name}) | {"spec": spec})
        container = {"name": "main", "image": "app:1", "resources": {"claims": [{"name": "gpu"}]}}
        body = {
            "containers": [container],
            "schedulingGates": [{"name": CONTROLLER}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "restartPolicy": "Never",
        }
        self.ask("POST", PODS, _object("v1", "Pod", {"name": name}) | {"spec": body})

    def end(self, name: str) -> None:
        """A pod is deleted, and its claim with it."""
        self.ask.response("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        self.ask("DELETE", f"{CLAIMS}/{name}")

    def node_of(self, name: str) -> str:
        """The node of a pod; "" while it waits."""
        return str(self.ask("GET", f"{PODS}/{name}")["spec"].get("nodeName", ""))

    @property
    def stranded(self) -> list[str]:
        """Pods that lost their gate and found no node."""
        waiting = [each for each in self.pods() if not each["spec"].get("nodeName")]
        return [each["metadata"]["name"] for each in waiting if not each["spec"].get("schedulingGates")]

    def devices_of(self, name: str) -> list[str]:
        """The devices of a claim."""
        return [each["device"] for each in _results(self.ask("GET", f"{CLAIMS}/{name}"))]

    # --- the scheduler ------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Time passes, and claims of pods that were bound are allocated."""
        super().run(seconds)
        for pod in self.pods():
            for used in pod["spec"].get("resourceClaims") or ():
                claim = self.ask("GET", f"{CLAIMS}/{used['resourceClaimName']}")
                if pod["spec"].get("nodeName") and not _results(claim):
                    self._allocate(claim, pod)

    def _allocate(self, claim: Obj, pod: Obj) -> None:
        """The last devices of its node that fit. Where none fits, the pod would have waited without its gate."""
        node, (wanted,) = pod["spec"]["nodeName"], claim["spec"]["devices"]["requests"]
        kind = "".join(each["cel"]["expression"].split("'")[3] for each in wanted["exactly"].get("selectors") or ())
        results: list[Obj] = []
        for _ in range(wanted["exactly"]["count"]):
            left = self._left(node, [each["device"] for each in results])
            fits = [each["name"] for each in self._devices[node] if _profile(each) == kind and _draws(each) <= left]
            assert fits, f"no device of {node} fits {pod['metadata']['name']}"
            results.append({"driver": DRIVER, "pool": node, "device": fits[-1], "request": "gpu"})
        users = [{"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
        self.ask("PATCH", f"{CLAIMS}/{claim['metadata']['name']}/status", {"status": status})

    def _left(self, node: str, more: list[str]) -> Counter[str]:
        """The counters of a node that its claims leave."""
        claims = self.ask("GET", CLAIMS)["items"]
        taken = more + [each["device"] for found in claims for each in _results(found) if each["pool"] == node]
        left = Counter[str]()
        for device in self._devices[node]:
            left |= _draws(device)
        for device in self._devices[node]:
            left -= Counter({key: taken.count(device["name"]) for key in _draws(device)})
        return left


def _object(version: str, kind: str, meta: dict[str, Any]) -> Obj:
    return {"apiVersion": version, "kind": kind, "metadata": meta}


def _results(claim: Obj) -> list[Obj]:
    found: list[Obj] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found


def _profile(device: Obj) -> str:
    return str(device["attributes"].get("profile", {}).get("string", ""))


def _draws(device: Obj) -> Counter[str]:
    """What a device takes of each counter, by set and name."""
    return Counter(f"{each['counterSet']}/{name}" for each in device["consumesCounters"] for name in each["counters"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Dynamic]:
    """A cluster without nodes."""
    found = Dynamic(tmp_path)
    yield found
    assert found.stranded == []
    found.close()


def settled(cluster: Dynamic, *names: str) -> Callable[[], object]:
    """Whether all these pods have nodes."""
    return lambda: all(cluster.node_of(name) for name in names)


def test_work_starts_on_instances_that_do_not_exist_yet(cluster: Dynamic) -> None:
    """Two profiles on one GPU. The second half of it has to wait until the first instance, in its way, is gone."""
    cluster.add("m1", gpus=1)
    cluster.leave("small", "1g.10gb")
    cluster.until(settled(cluster, "small"))
    assert cluster.node_of("small") == "m1"
    assert cluster.devices_of("small") == ["gpu-0-mig-1g10gb-1-6"]
    cluster.leave("half", "3g.40gb")
    cluster.until(settled(cluster, "half"))
    cluster.leave("other", "3g.40gb")
    cluster.wait(120.0)
    assert cluster.node_of("other") == ""
    cluster.leave("tiny", "1g.10gb")
    cluster.until(settled(cluster, "tiny"))
    cluster.end("small")
    cluster.end("tiny")
    cluster.until(settled(cluster, "other"))
    assert cluster.actions == {"admit_gang": 4}
    assert cluster.failures == 0


def test_whole_gpus_and_instances_share_a_node(cluster: Dynamic) -> None:
    """What asks for a whole GPU finds one that no instance was cut out of; the rest of the other one is given out."""
    cluster.add("m1", gpus=2)
    cluster.leave("small", "1g.10gb")
    cluster.leave("whole")
    cluster.until(settled(cluster, "small", "whole"))
    cluster.leave("pair", count=2)
    cluster.leave("more", "2g.20gb")
    cluster.until(settled(cluster, "more"))
    cluster.wait(60.0)
    assert cluster.node_of("pair") == ""
    for name in ("small", "more", "whole"):
        cluster.end(name)
    cluster.until(settled(cluster, "pair"))
    assert sorted(cluster.devices_of("pair")) == ["gpu-0", "gpu-1"]


def test_many_at_once_fill_two_nodes_and_no_more(cluster: Dynamic) -> None:
    """Sixteen pods in one moment, and room for seven on each of two nodes: none waits without its gate."""
    for name in ("m1", "m2"):
        cluster.add(name, gpus=1)
    names = [f"p{number:02}" for number in range(16)]
    for name in names:
        cluster.leave(name, "1g.10gb")
    cluster.wait(120.0)
    assert Counter(cluster.node_of(name) for name in names) == {"m1": 7, "m2": 7, "": 2}
