"""What must hold of each write through the API, judged by the objects of the server alone."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from apiserver.server import Server
from autopilot.contract.annotations import CHECK, EPOCH, PLACEMENT, STOPPED
from autopilot.core.model.policy import Policy
from autopilot.records.memory import read_memory_text
from autopilot.service.leading.memory import INDEX
from tests.hostile.api_wire import Write

Obj = dict[str, Any]
GPU = "nvidia.com/gpu"
WORKLOADS = "workloads.kueue.x-k8s.io"
EXCLUDE, SLO, PREEMPTIBLE = "gpu-autopilot.io/exclude", "gpu-autopilot.io/slo-class", "gpu-autopilot.io/preemptible"
LEFT_ALONE = ("/events", "/leases", "/admissionchecks/", "/namespaces/gpu-autopilot/configmaps")
"""What only reports, and what is written over a version that its writer has read."""


@dataclass
class Decided:
    """One instruction as it was sent last: what the view, the policy and people said then."""

    kind: str
    action: str
    job: str  # uid
    at_s: float
    view_s: float  # the view shows the cluster of this time
    allowed: str  # why the mode does not allow it; "" where it does
    contract: bool = False  # it keeps a promise, so no budget bounds it
    owed: bool = False  # it takes back what its queue holds above its guarantee, so its protection does not hold


@dataclass
class ApiWatch:
    """Judges every write; `problems` are sentences."""

    server: Server
    policy: Policy
    gpus: int  # of each node
    fence: int = 0  # of the present leader
    decided: dict[str, Decided] = field(default_factory=dict)  # by instruction id
    shelter_s: dict[str, dict[str, float]] = field(default_factory=dict)  # uid of a Job -> mark -> since when
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    stopped: dict[tuple[str, str], float] = field(default_factory=dict)  # (instruction, Job) -> first stop
    remembered: set[str] = field(default_factory=set)  # instructions that the memory in the cluster has named

    def remember(self) -> None:
        """Read what the next leader would find."""
        found = self.server.store.get("configmaps", "gpu-autopilot", INDEX)
        packed = ((found or {}).get("binaryData") or {}).get("memory", "")
        if packed:
            text = zlib.decompress(base64.b64decode(packed)).decode()
            self.remembered |= read_memory_text(text, INDEX).effects.in_flight.keys()

    def judge(self, write: Write) -> None:
        """One write of the controller that changed something."""
        if any(part in write.path for part in LEFT_ALONE):
            return
        shown = f"{write.method} {write.path}"
        wrong = [*self._plain(write), *self._epoch(write)]
        name = _effect_of(write)
        stops = _stops(write)
        if name:
            self.counts["stops" if stops else "other writes"] += 1
            wrong += self._decision(write, name, stops=stops)
        if _says_ready(write):
            wrong += [f"node {each}" for each in self._overbooked()]
        self.problems += [f"{shown}: {each}" for each in wrong]

    def _plain(self, write: Write) -> list[str]:
        """Work is never deleted, and each change names the object that it is about."""
        if write.method == "DELETE":
            return ["it is a bare delete"]
        if write.path.endswith("/eviction"):
            stated = write.body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
            return [] if stated else ["an eviction without the uid of its pod"]
        if write.before is None:
            return []
        stated = write.body.get("metadata", {}).get("uid")
        if not stated:
            return ["a change without the uid of its object"]
        return [] if stated == write.before["metadata"]["uid"] else ["it changed another object of the name"]

    def _epoch(self, write: Write) -> list[str]:
        """It carries the fence of the present leader."""
        meta = write.body.get("metadata", {})
        stated = str(meta.get("annotations", {}).get(EPOCH, ""))
        if write.path.endswith("/status"):
            said = _our_check(write.body).get("message", "")
            found = re.match(r"epoch (\d+): ", said)
            stated = found[1] if found else ""
        return [] if stated == str(self.fence) else [f"epoch {stated or 'none'}, and {self.fence} leads"]

    def _decision(self, write: Write, name: str, *, stops: bool) -> list[str]:
        """What the view showed when the instruction was sent, and what stands on the object."""
        told = self.decided.get(name)
        if told is None:
            return [f"instruction {name} is not known"]
        wrong = [told.allowed] if told.allowed else []
        if name not in self.remembered:
            wrong.append(f"{name}: it is not in the memory of the cluster, so the next leader would not know it")
        marks = self.shelter_s.get(told.job, {})
        if marks.get(EXCLUDE, told.view_s) < told.view_s and not told.owed:
            wrong.append(f"{name}: it opted out before the decision")
        if not stops:
            return wrong
        wrong += [
            f"{name}: it was protected before the decision ({mark})"
            for mark in (SLO, PREEMPTIBLE)
            if marks.get(mark, told.view_s) < told.view_s and told.action != "recover" and not told.owed
        ]
        self.counts["preemptions"] += not told.contract
        if not told.contract:
            self.stopped.setdefault((name, told.job), write.at_s)
        return [*wrong, *self._budget(write.at_s)]

    def _budget(self, now_s: float) -> list[str]:
        """Stops within the window, without those by contract. An instruction that is sent again counts once."""
        rules = self.policy.budget
        within = [at_s for at_s in self.stopped.values() if now_s - rules.window_s < at_s <= now_s]
        if len(within) > rules.per_cluster:
            return [f"{len(within)} stops within {rules.window_s:g} s"]
        return []

    def _overbooked(self) -> list[str]:
        """Nodes whose GPUs are promised or taken more than once."""
        taken: dict[tuple[str, str], int] = Counter()  # (node, Job) -> GPUs that its pods hold
        for pod in self.server.store.objects("pods"):
            node = pod["spec"].get("nodeName")
            if node and pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}:
                taken[node, _owner(pod)] += _gpus(pod["spec"])
        promised: dict[tuple[str, str], int] = Counter()
        for workload in self.server.store.objects(WORKLOADS):
            check = _our_check(workload)
            over = {each["type"] for each in workload["status"].get("conditions", ()) if each["status"] == "True"}
            if check.get("state") != "Ready" or over & {"Finished", "Evicted"}:
                continue
            for update in check.get("podSetUpdates") or ():
                parts = [each for each in workload["spec"]["podSets"] if each["name"] == update["name"]]
                nodes = self._selected(update.get("nodeSelector") or {})
                for part in parts:
                    gpus = _gpus(part["template"]["spec"]) * part.get("count", 1)
                    for node in nodes:
                        promised[node, _owner(workload)] += gpus // len(nodes)
        held: Counter[str] = Counter()
        for node, job in taken.keys() | promised.keys():
            held[node] += max(taken.get((node, job), 0), promised.get((node, job), 0))
        full = [node for node, gpus in held.items() if gpus > self.gpus]
        return [
            f"{node}: {held[node]} of {self.gpus} GPUs are promised or taken "
            f"(promised {_of(promised, node)}, taken {_of(taken, node)})"
            for node in full
        ]

    def _selected(self, selector: Obj) -> list[str]:
        """Nodes of a placement."""
        host = selector.get("kubernetes.io/hostname")
        if host:
            return [host]
        label = next((key for key in selector if key.startswith(PLACEMENT)), "")
        return [
            each["metadata"]["name"]
            for each in self.server.store.objects("nodes")
            if label in each["metadata"].get("labels", {})
        ]


def _of(amounts: dict[tuple[str, str], int], node: str) -> dict[str, int]:
    """GPUs of a node by Job."""
    return {job: gpus for (name, job), gpus in amounts.items() if name == node and gpus}


def _our_check(found: Obj) -> Obj:
    rows = (found.get("status") or {}).get("admissionChecks") or ()
    return next((each for each in rows if each["name"] == CHECK), {})


def _says_ready(write: Write) -> bool:
    return write.path.endswith("/status") and _our_check(write.body).get("state") == "Ready"


def _stops(write: Write) -> bool:
    """Whether it takes GPUs from work."""
    if write.path.endswith("/eviction"):
        return True
    check = _our_check(write.body)
    retried = check.get("state") == "Retry" and ": stopped: " in check["message"]
    return retried or (write.body.get("spec", {}).get("active") is False and _runs(write.before))


def _runs(workload: Obj | None) -> bool:
    """Whether Kueue has admitted a Workload: only then a pod of it may run."""
    rows = ((workload or {}).get("status") or {}).get("conditions") or ()
    return workload is None or any(each["type"] == "Admitted" and each["status"] == "True" for each in rows)


def _effect_of(write: Write) -> str:
    """The instruction that a write names; "" where it names none."""
    said = _our_check(write.body).get("message", "") if write.path.endswith("/status") else ""
    if said:
        return said.split(": ")[1]
    for key, text in (write.body.get("metadata", {}).get("annotations") or {}).items():
        if key in {STOPPED, "gpu-autopilot.io/effect", "gpu-autopilot.io/checkpoint-request"} and text:
            return str(json.loads(text).get("id", ""))
    return ""


def _owner(found: Obj) -> str:
    owners = found["metadata"].get("ownerReferences") or ()
    return str(owners[0]["uid"]) if owners else str(found["metadata"]["uid"])


def _gpus(spec: Obj) -> int:
    return sum(int((each.get("resources", {}).get("limits") or {}).get(GPU, 0)) for each in spec["containers"])
