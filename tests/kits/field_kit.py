"""Plays a situation of tests/data/field to the collectors and the controller, in virtual time.

A situation is a file of Kubernetes objects, raw or in the short forms `node:` and `pod:`, and a file of what exporters
of GPUs show. The text T-600 is the time 600 s before the start, {n} the number of a copy.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from autopilot.controller import Controller, Wiring
from autopilot.core.capabilities.verbs import OPERATIONS
from autopilot.core.model.ports import Collector
from autopilot.core.model.records import Decision, Gap, Instruction, Note, Observation, Outcome, OutcomeKind, Proposal
from autopilot.core.model.snapshot import ClusterSnapshot
from autopilot.settings import load_policy
from collectors.exporter import ExporterCollector, Target
from collectors.kubernetes.collector import KubernetesCollector, Options
from collectors.kubernetes.source import Cluster
from tests.kits.kube_api import PLURAL, Canned
from tests.kits.kube_objects import EPOCH_S, stamp
from tests.kits.stored import Scraped, StoredCollector

Json = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "data" / "field"


def objects_of(path: Path) -> list[Json]:
    """The API objects of a file."""
    documents = yaml.safe_load_all(path.read_text("utf-8"))
    return made(*(each for document in documents for each in (document if isinstance(document, list) else [document])))


def made(*written: Json) -> list[Json]:
    """The API objects that are written in this way."""
    found: list[Json] = []
    for each in written:
        copies, text = range(each.pop("copies", 1)), json.dumps(each)
        found.extend(_object(json.loads(text.replace("{n}", str(number)))) for number in copies)
    return list(json.loads(re.sub(r"\bT([-+]\d+)\b", lambda t: stamp(EPOCH_S + int(t[1])), json.dumps(found))))


def _object(short: Json) -> Json:
    found = _node(short) if "node" in short else _pod(short) if "pod" in short else short
    data = found["metadata"]
    data.setdefault("uid", f"{found['kind']}-{data.get('namespace', '')}-{data['name']}".lower())
    data.setdefault("creationTimestamp", "T-900")
    for condition in found.get("status", {}).get("conditions", []):
        condition.setdefault("lastTransitionTime", "T-900")
    return found


def _texts(values: Json) -> Json:
    return {key: str(value) for key, value in values.items()}


def _node(short: Json) -> Json:
    """`node` (its name), gpus, product, labels, annotations, capacity, allocatable, taints, unschedulable and
    conditions.
    """
    gpus, product = short.get("gpus"), short.get("product")
    has = {"cpu": 96, "memory": "1000Gi"} | ({} if gpus is None else {"nvidia.com/gpu": gpus})
    has |= short.get("capacity", {})
    discovered = {"gpu.product": product, "gpu.count": gpus, "gpu.replicas": 1, "mig.strategy": "mixed"}
    labels = {"kubernetes.io/hostname": short["node"]}
    labels |= {f"nvidia.com/{key}": value for key, value in discovered.items()} if product else {}
    labels |= short.get("labels", {})
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": short["node"], "labels": _texts(labels), "annotations": short.get("annotations", {})},
        "spec": {"taints": short.get("taints", []), "unschedulable": short.get("unschedulable", False)},
        "status": {
            "capacity": _texts(has),
            "allocatable": _texts(has | short.get("allocatable", {})),
            "conditions": [{"type": "Ready", "status": "True"}, *short.get("conditions", [])],
        },
    }


def _pod(short: Json) -> Json:
    """`pod` (namespace/name), at (a node), gpus or resources, owner [api, kind, name], labels, annotations, spec and
    status.
    """
    (space, name), at = short["pod"].split("/"), short.get("at")
    limits = _texts(short.get("resources", {"nvidia.com/gpu": short.get("gpus", 1)}))
    owners = []
    if "owner" in short:
        api, kind, owner = short["owner"]
        uid = f"{kind}-{space}-{owner}".lower()
        owners = [{"apiVersion": api, "kind": kind, "name": owner, "controller": True, "uid": uid}]
    conditions = [{"type": kind, "status": str(bool(at))} for kind in ("Ready", "PodScheduled")[: 2 if at else 1]]
    data = {key: short.get(key, {}) for key in ("labels", "annotations")}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": space, "ownerReferences": owners, **data},
        "spec": spec | ({"nodeName": at} if at else {}) | short.get("spec", {}),
        "status": {"phase": "Running" if at else "Pending", "conditions": conditions} | short.get("status", {}),
    }


def exposition(spec: Json, node: str, at_s: float) -> str:
    """What the exporter of a node shows at a time; [low, high] is a random value between both.

    `EXP_NAME 79` is a counter of the exporter for one XID.
    """
    lines, rng = [], random.Random(int(at_s))
    for group in (each for each in spec["gpus"] if each["node"] == node):
        for index in range(group.get("first", 0), group.get("first", 0) + group.get("count", 1)):
            now = {"pod": "", "drop": False, **group}
            for change in spec.get("changes", []):
                if at_s >= change["at_s"] and change["node"] == node and index in change.get("gpus", [index]):
                    now |= {**change, "values": now["values"] | change.get("values", {})}
            uuid = f"GPU-{group['id']:0>8}-0000-0000-0000-{index:012d}"
            labels = {"gpu": index, "UUID": uuid, "device": f"nvidia{index}", "Hostname": node}
            labels |= {"modelName": group.get("model", "NVIDIA H100 80GB HBM3")}
            if now["pod"]:
                space, _, pod = now["pod"].partition("/")
                labels |= {"namespace": space, "pod": pod, "container": "main"}
            text = ",".join(f'{key}="{value}"' for key, value in labels.items())
            for name, value in {} if now["drop"] else now["values"].items():
                shown = rng.uniform(*value) if isinstance(value, list) else value
                field, _, xid = name.partition(" ")
                code = f',xid="{xid}"' if xid else ""
                lines.append(f"DCGM_{'' if field.startswith('EXP_') else 'FI_'}{field}{{{text}{code}}} {shown}")
    return "\n".join(lines) + "\n"


@dataclass
class Played:
    """What came of a situation: every tick, and what was carried out."""

    ticks: list[tuple[float, Observation, Decision]] = field(default_factory=list)  # at seconds since the start
    sent: list[tuple[float, Instruction]] = field(default_factory=list)

    @property
    def snapshot(self) -> ClusterSnapshot:
        """The cluster as the last tick saw it."""
        return self.ticks[-1][1].snapshot

    @property
    def free_gpus(self) -> float:
        """Free GPUs of the fleet as people see them at the last tick."""
        return self.ticks[-1][1].signals.free_gpus

    @property
    def allocated_gpus(self) -> float:
        """Allocated GPUs of the fleet as people see them at the last tick."""
        return self.ticks[-1][1].signals.allocated_gpus

    def accepted(self, kind: str, pattern: str = "") -> list[tuple[float, Proposal]]:
        """Accepted proposals of a kind whose subject or victims match, with their times."""
        return [
            (at_s, each)
            for at_s, _, decision in self.ticks
            for each in decision.plan.proposals
            if each.kind == kind
            and each.accepted
            and re.search(pattern, " ".join([each.subject.name, *(victim.workload for victim in each.victims)]))
        ]

    def gaps(self) -> Iterator[Gap]:
        """Gaps of all ticks."""
        return (each for _, observation, _ in self.ticks for each in observation.gaps)

    def notes(self) -> Iterator[Note]:
        """Notes of all ticks."""
        return (each for _, _, decision in self.ticks for each in decision.notes)

    def waits(self) -> dict[str, str]:
        """Why each workload waits at the last tick, by its id: the code."""
        refusals, ids = self.ticks[-1][2].plan.refusals, self.snapshot.workloads.id
        return {ids[row]: str(refusals.codes[code]) for row, code in zip(refusals.workload, refusals.code, strict=True)}

    def said(self, pattern: str) -> bool:
        """Whether a gap or a note says it."""
        texts = [f"{each.object_id} {each.signal} {each.reason}" for each in self.gaps()]
        texts += [f"{each.code} {each.subject}" for each in self.notes()]
        return any(re.search(pattern, each, re.IGNORECASE) for each in texts)

    def held(self) -> dict[str, int]:
        """GPUs, or parts of GPUs, that each workload holds at the last tick."""
        shot = self.snapshot
        found = dict.fromkeys(map(str, shot.workloads.id), 0)
        for row in shot.placements.workload.tolist():
            found[str(shot.workloads.id[row])] += 1
        return found


def play(case: str, objects: str, scrape: str = "", **more: Any) -> Played:
    """Play files of a folder of tests/data/field; `more` is that of `play_objects`."""
    spec = yaml.safe_load((FOLDER / case / scrape).read_text("utf-8")) if scrape else None
    return play_objects(objects_of(FOLDER / case / objects), spec, **more)


def play_objects(
    objects: Sequence[Json],
    spec: Json | None = None,
    *,
    ticks: int = 3,
    step_s: float = 30.0,
    policy: str = "autopilot",
    acts: bool = False,
    effects: bool = False,
    change: Mapping[float, Sequence[Json]] | None = None,
    stored_s: float = 0.0,
    others: Sequence[Collector] = (),
) -> Played:
    """Play objects and a specification of exporters. `effects`: cordons and evictions come about. `change`: objects
    that are written at these seconds. `stored_s`: a Prometheus scrapes the exporters this often, and is asked.
    `others`: sources beside these.
    """
    clock, api, played = SimpleNamespace(t_s=0.0), Canned(), Played()
    api.put(*(each for each in objects if each["kind"] in PLURAL))
    cluster = Cluster(api, lambda: EPOCH_S + clock.t_s, rng=random.Random(1))
    kubernetes = KubernetesCollector(cluster, Options(acts=acts), skew_s=lambda: 0.0)
    sources: list[Any] = [kubernetes, *others]
    if nodes := list(dict.fromkeys(each["node"] for each in (spec or {"gpus": ()})["gpus"])):
        urls = {f"http://{node}/": node for node in nodes}

        def fetch(url: str) -> bytes:
            return exposition(spec or {}, urls[url], clock.t_s).encode()

        if stored_s:
            sources.append(_prometheus(spec or {}, nodes, stored_s))
        else:
            sources.append(ExporterCollector([Target(url, "") for url in urls], fetch, interval_s=1.0))
    for source in sources[1:]:
        kubernetes.join(source)
    fresh: list[Instruction] = []

    def apply(instruction: Instruction, at_s: float) -> Outcome:
        fresh.append(instruction)
        return Outcome(instruction.id, OutcomeKind.DONE, at_s)

    lever, shipped = SimpleNamespace(name="field", apply=apply), load_policy(policy)
    controller = Controller(
        Wiring(
            collectors=sources,
            forecasters=[],
            actuators=dict.fromkeys(OPERATIONS, lever),
            journal=SimpleNamespace(intend=_nothing, conclude=_nothing),
            memory=SimpleNamespace(load=_nothing, save=_nothing),
            policy=SimpleNamespace(current=lambda: shipped),
            leadership=SimpleNamespace(fence=lambda: 1),
            inbox=SimpleNamespace(drain=lambda _: (), kill_switch=lambda: False),
            on_decision=lambda observation, decision: played.ticks.append((clock.t_s, observation, decision)),
        )
    )
    waiting, sent = dict(change or {}), len(api.log)
    for number in range(ticks):
        clock.t_s = number * step_s
        for at_s in [each for each in waiting if each <= clock.t_s]:
            api.put(*waiting.pop(at_s))
        for kind in {path.rpartition("/")[2] for _, path, _ in api.log[sent:]}:
            api.scripts[kind] = [[event for _, path, event in api.log[sent:] if path.endswith(f"/{kind}")]]
        sent = len(api.log)
        for _ in range(3):
            cluster.step_all()
        controller.tick(EPOCH_S + clock.t_s)
        proposals = {each.id: each for each in played.ticks[-1][2].plan.proposals}
        for each in fresh:
            played.sent.append((clock.t_s, each))
            if effects:
                _carry_out(api, each, proposals[each.proposal_id])
        fresh.clear()
    return played


def _nothing(*_: object) -> None:
    pass


def _prometheus(spec: Json, nodes: Sequence[str], scrape_s: float) -> StoredCollector:
    """A Prometheus that scrapes the exporter of each node; its own labels replace those of the exporter."""

    def target(node: str) -> Scraped:
        own = {"job": "dcgm", "instance": f"{node}:9400", "namespace": "gpu-operator", "pod": f"exporter-{node}"}
        return Scraped(lambda at_s: exposition(spec, node, at_s - EPOCH_S), own)

    return StoredCollector([target(node) for node in nodes], EPOCH_S, scrape_s=scrape_s, joins=True, workers=1)


def _carry_out(api: Canned, instruction: Instruction, proposal: Proposal) -> None:
    """A cordon, its end or an eviction comes about."""
    on = bool(getattr(proposal.change, "on", False))
    for each in [found for table in list(api.objects.values()) for found in list(table.values())]:
        data = each["metadata"]
        if (instruction.kind, each["kind"], data["name"]) == ("cordon", "Node", instruction.subject.name):
            taints = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if on else []
            api.put({**each, "spec": {"unschedulable": on, "taints": taints}})
        owner = (data.get("ownerReferences") or [data])[0]["name"]
        whole = f"{data.get('namespace')}/{owner}"
        if (instruction.kind, each["kind"], whole) == ("evict", "Pod", instruction.subject.name):
            api.remove(each)
