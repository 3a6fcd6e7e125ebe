"""Objects that say anything, as the levers, the upkeep of the actuator and the watchdog meet them, beside honest work.

The fields come from the types by which these objects are checked (`actuators.kubernetes.wire`).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api, answer_of, path_of
from actuators.kubernetes.changes import GATED_BY
from actuators.kubernetes.levers.leftover import LeftoverRetries
from actuators.kubernetes.upkeep import AbandonedRecuts, ActiveCheck, OldCeilings, OldOffers, OldPlacements, OldRequests
from actuators.kubernetes.wire import TYPES
from autopilot.contract.annotations import CHECK, CONTROLLER, EFFECT, MANAGE, OFFERED, REQUEST, STOPPED
from autopilot.contract.documents import parsed
from autopilot.contract.scaling import CEILING
from autopilot.contract.tree import PREFIX
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.geometry.recut import RecutGpu
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.idle.notify import Notify
from autopilot.core.model.objects import Slot, Subject, SubjectKind
from autopilot.core.model.records import Instruction, Outcome
from autopilot.core.model.stops import StopReason
from autopilot.core.model.verb import Operation
from autopilot.core.nodes.offer import Offer
from autopilot.core.nodes.provision import Provision
from autopilot.core.recovery.cordon import Cordon
from autopilot.core.replicas.scale import Scale
from autopilot.core.sharing_time.resize_members import ResizeOperation
from autopilot.kube.cluster_api import Answer as Read
from autopilot.service.watchdog.removal import Removal
from tests.hostile.objects import over, sample, spoiled
from tests.kits.kube_objects import EPOCH_S, Json, done, job, meta, node, pod, workload

NOW_S = EPOCH_S + 1000.0
SLOTS = tuple(Slot("n1", f"n1/{gpu}") for gpu in range(2))
STOP = EvictOperation(reason=StopReason.PREEMPT, grace_s=0.0)
WORK: tuple[Operation, ...] = (
    AdmitOperation(slots=SLOTS),
    STOP,
    EvictOperation(reason=StopReason.MOVE, grace_s=300.0),
    ResizeOperation(slots=SLOTS),
    ResizeOperation(slots=SLOTS[:1], reason=StopReason.PREEMPT),
    Notify(gpus=1.0, idle_s=3600.0, grace_s=600.0),
    Provision(pool="p", nodes=1, provisioning_class="check"),
)
SERVICE: tuple[Operation, ...] = (
    Scale(replicas=3, until_s=NOW_S + 900.0),
    Scale(replicas=0, until_s=0.0),
    Ceiling(replicas=0, until_s=NOW_S + 900.0, had=2, gpus=1.0, owner="t/ann"),
    Ceiling(replicas=-1, until_s=0.0, had=2, gpus=1.0, owner="t/ann"),
)
NODE: tuple[Operation, ...] = (
    Cordon(on=True, reason="XID 79"),
    Cordon(on=False, reason="XID 79"),
    Offer(on=True, reason="idle"),
    RecutGpu(pool="p", before=None, after=(("1g.10gb", 0),), scope="node", node="bad", index=0),
)
FOR: Mapping[str, tuple[SubjectKind, tuple[Operation, ...]]] = {
    "Workload": (SubjectKind.WORKLOAD, WORK),
    "Job": (SubjectKind.WORKLOAD, WORK),
    "Pod": (SubjectKind.WORKLOAD, WORK),
    "Deployment": (SubjectKind.SERVICE, SERVICE),
    "StatefulSet": (SubjectKind.SERVICE, SERVICE),
    "Node": (SubjectKind.NODE, NODE),
}
"""Instructions about hostile objects themselves."""
ROUGH = re.compile(r"\b(Type|Key|Attribute|Index|Overflow|Recursion|Memory|Unboundlocal)Error\b")
"""An error that a type should have kept away."""


class Identity(NamedTuple):
    """One object."""

    kind: str
    namespace: str
    name: str
    uid: str


class Found(NamedTuple):
    """The objects of a subject."""

    incarnation: int
    objects: tuple[Identity, ...]


@dataclass(frozen=True)
class Case:
    """One hostile object at its place on the server."""

    number: int
    what: str
    identity: Identity
    body: bytes

    @property
    def path(self) -> str:
        """Of the object."""
        return path_of(self.identity.kind, self.identity.namespace, self.identity.name)


# --- hostile objects --------------------------------------------------------------------------------


@lru_cache
def alive(kind: str) -> str:
    """An object of a kind, with every field that is read, in a state in which much is done with it; as JSON."""
    found = over(sample(TYPES[kind]), _full(_real(kind)))
    found["metadata"].pop("deletionTimestamp", None)
    found["metadata"]["ownerReferences"] = []
    return json.dumps(found | {"kind": kind})


def _full(found: Any) -> Any:
    """A document without what is empty, so that the fields of its type stay."""
    if not isinstance(found, dict):
        return found
    return {key: _full(each) for key, each in found.items() if each not in ({}, [])}


def _real(kind: str) -> Json:
    work = {STOPPED: json.dumps({"uid": "uid-bad", "id": "1/p/x", "reason": "preempt", "returns": True})}
    data = {"metadata": meta("bad", "bad", "uid-bad", labels={MANAGE: "true"}, annotations=work)}
    if kind == "Pod":
        return pod("bad", 2, namespace="bad", node="n1", annotations={}, schedulingGates=[{"name": CONTROLLER}])
    if kind == "Job":
        notes = work | {GATED_BY: CONTROLLER, PREFIX + "members": "4", PREFIX + "min-members": "1"}
        bare = job("bad", 1, namespace="bad", suspend=True, annotations=notes)
        bare["spec"].pop("completions")
        bare["metadata"]["labels"] = {MANAGE: "true"}
        return bare
    if kind == "Workload":
        updates = [{"name": "main", "nodeSelector": {"k": "x"}}]
        check = {"name": CHECK, "state": "Pending", "message": "", "podSetUpdates": updates}
        long_ago = [done("QuotaReserved", at_s=EPOCH_S)]
        return workload("bad", 2, namespace="bad", conditions=long_ago, status={"admissionChecks": [check]})
    if kind == "Node":
        return node("bad") | {"metadata": meta("bad", labels={"nvidia.com/mig.capable": "true"}, annotations={})}
    if kind == "AdmissionCheck":
        return {"metadata": meta(CHECK), "spec": {"controllerName": CONTROLLER}, "status": {"conditions": []}}
    if kind == "ProvisioningRequest":
        return data | {"metadata": meta("bad", "bad", labels={REQUEST: "true"}, annotations={})}
    if kind in {"Deployment", "StatefulSet"}:
        ceiling = {"id": "1/p/s", "replicas": 0, "until": 1.0, "owner": 3, "ours": 0, "generation": 1, "revision": ""}
        notes = {PREFIX + CEILING: json.dumps(ceiling), PREFIX + "scale": "true", PREFIX + "min-replicas": "0"}
        return {"metadata": meta("bad", "bad", annotations=notes), "spec": {"replicas": 0}}
    if kind == "HorizontalPodAutoscaler":
        aim = {"kind": "Deployment", "name": "bad"}
        return data | {"spec": {"scaleTargetRef": aim, "minReplicas": 1, "maxReplicas": 9, "metrics": []}}
    return data


def hostile(number: int) -> Case:
    """The object with this number; the same one in every process."""
    rng, kind = random.Random(number), tuple(TYPES)[number % len(TYPES)]
    found = json.loads(alive(kind))
    data = found["metadata"]
    space, uid = data.get("namespace", ""), f"uid-bad-{number}"
    name = data["name"] if data["name"] == CHECK else f"bad-{number}"
    found["metadata"] |= {"name": name, "uid": uid}
    told, body = spoiled(rng, found)
    return Case(number, f"{kind} {number}: {told}", Identity(kind, space, name, uid), body)


# --- the server -------------------------------------------------------------------------------------


@dataclass
class Shelf:
    """A server that checks nothing: objects by path, and what is written to honest ones."""

    objects: dict[str, bytes] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)

    def put(self, kind: str, found: Json) -> None:
        """An honest object."""
        data = found["metadata"]
        self.objects[path_of(kind, data.get("namespace", ""), data["name"])] = json.dumps(found).encode()

    def respond(self, method: str, path: str, query: Mapping[str, str] | None, body: Any) -> tuple[int, bytes]:
        """The answer to one request."""
        path, query = unquote(path), query or {}
        of, _, last = path.rpartition("/")
        of = of if last in {"status", "scale", "eviction"} else path
        if method == "GET" and path not in self.objects:
            return self._list(path)
        if method == "POST" and last != "eviction":
            self._wrote(method, path, body, query)
            return 201, json.dumps(body | {"metadata": {"uid": "uid-new"} | body["metadata"]}).encode()
        if of not in self.objects:
            return 404, json.dumps({"message": f"{path} not found", "details": {"name": last}}).encode()
        if method != "GET":
            self._wrote(method, path, body, query)
        if method == "PATCH" and "dryRun" not in query and "/bad" not in of:
            patch = {key: value for key, value in body.items() if key != "metadata"}
            notes = {"metadata": {"annotations": body.get("metadata", {}).get("annotations", {})}}
            self.objects[of] = json.dumps(_merged(json.loads(self.objects[of]), patch | notes)).encode()
        return 200, self.objects[of]

    def _list(self, path: str) -> tuple[int, bytes]:
        root, _, rest = path.partition("/namespaces/")
        space, _, plural = rest.partition("/")
        parts = f"{root}/namespaces/{space}/{plural}/" if rest else ""
        found = [body for at, body in self.objects.items() if (at.startswith(parts) if rest else _in_list(at, path))]
        if not found and (rest.count("/") > 1 or not path.endswith("s")):
            name = path.rpartition("/")[2]
            return 404, json.dumps({"message": f"{name} not found", "details": {"name": name}}).encode()
        return 200, b'{"metadata": {}, "items": [%s]}' % b", ".join(found)

    def _wrote(self, method: str, path: str, body: Any, query: Mapping[str, str]) -> None:
        text = json.dumps(body, sort_keys=True)
        if "dryRun" not in query and "bad" not in path and "bad" not in text and "/admissionchecks/" not in path:
            self.writes.append(f"{method} {path} {text}")


def _in_list(at: str, path: str) -> bool:
    group, _, plural = path.rpartition("/")
    return at.startswith(f"{path}/") or (at.startswith(f"{group}/namespaces/") and at.split("/")[-2] == plural)


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    found = {**old, **{key: _merged(old.get(key, {}), value) for key, value in patch.items()}}
    return {key: value for key, value in found.items() if value is not None}


class ShelfApi(Api):
    """The requests of the levers, without a socket."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.spent_s, self.may_write = shelf, 0.0, lambda: ""

    def _ask(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, media: str, *, again: bool = True
    ) -> Answer:
        return answer_of(*self.shelf.respond(method, path, query, body))


@dataclass
class DogApi:
    """The requests of the watchdog."""

    shelf: Shelf

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Read:
        """Read."""
        status, body = self.shelf.respond("GET", path, query, None)
        return Read(status, body.decode())

    def patch(self, path: str, body: Any) -> Read:
        """Merge patch."""
        status, found = self.shelf.respond("PATCH", path, None, body)
        return Read(status, found.decode())


# --- the world --------------------------------------------------------------------------------------


@dataclass
class View:
    """What the collector would show (port `Objects`)."""

    there: dict[str, Found] = field(default_factory=dict)
    bad: Sequence[Case] = ()

    def find(self, kind: str, uid: str) -> Found | None:
        """By uid."""
        return self.there.get(uid)

    def _noted(self, kinds: tuple[str, ...], key: str) -> Iterator[tuple[Identity, str]]:
        for each in self.bad:
            text = _notes(each).get(key)
            if each.identity.kind in kinds and isinstance(text, str):
                yield each.identity, text

    def changing(self) -> Iterator[tuple[Identity, str]]:
        """Nodes with a record."""
        yield from self._noted(("Node",), EFFECT)

    def offered(self) -> Iterator[Identity]:
        """Nodes that are offered back."""
        yield from (each for each, _ in self._noted(("Node",), OFFERED))

    def ceiled(self) -> Iterator[tuple[Identity, str]]:
        """Services with a ceiling."""
        yield from self._noted(("Deployment", "StatefulSet"), PREFIX + CEILING)

    def placed(self) -> Iterator[tuple[str, str, str]]:
        """Every hostile node, as if it had a label of a placement."""
        for each in self.bad:
            if each.identity.kind == "Node":
                yield each.identity.name, each.identity.uid, "placement.gpu-autopilot.io/0123456789"

    def uids(self) -> Iterator[str]:
        """All work."""
        yield from self.there

    def reservations(self, uids: Sequence[str]) -> Iterator[Identity]:
        """Hostile Workloads first, then one that holds quota."""
        yield from self.left_over()
        yield Identity("Workload", "team", "holder", "uid-team-holder")

    def taken(self) -> Iterator[Identity]:
        """Hostile Workloads."""
        yield from self.left_over()

    def left_over(self) -> Iterator[Identity]:
        """Hostile Workloads."""
        yield from (each.identity for each in self.bad if each.identity.kind == "Workload")


def _notes(case: Case) -> Json:
    found = parsed(case.body)["metadata"].get("annotations")
    return found if isinstance(found, dict) else {}


def honest(shelf: Shelf, view: View) -> list[Instruction]:
    """Work of every form, and one instruction for each."""
    asks: list[Instruction] = []

    def ask(kind: str, found: Json, operation: Operation, subject: SubjectKind = SubjectKind.WORKLOAD) -> None:
        data = found["metadata"]
        shelf.put(kind, found)
        view.there[data["uid"]] = Found(0, (Identity(kind, data.get("namespace", ""), data["name"], data["uid"]),))
        about = Subject(subject, data["name"], data["uid"], 0)
        asks.append(Instruction(f"1/p/{len(asks)}", about, operation, NOW_S + 300.0, 1, "p"))

    check = {"name": CHECK, "state": "Pending", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    checked = {"admissionChecks": [check]}
    held = {"admission": {"podSetAssignments": [{"name": "main", "resourceUsage": {"nvidia.com/gpu": "2"}}]}}
    reserved = [done("QuotaReserved", at_s=EPOCH_S)]
    for name in ("n1", "n2"):
        shelf.put("Node", node(name))
    shelf.put("Workload", workload("holder", 2, conditions=reserved, status=checked | held))
    ask("Workload", workload("starts", 2, conditions=reserved, status=checked), AdmitOperation(slots=SLOTS))
    ask("Workload", workload("lacks", 2, status=checked), AdmitOperation(slots=SLOTS))
    ask("Workload", workload("stops", 2, admitted_to="gpus", status=checked), STOP)
    ask("Pod", pod("alone", 2, node="n1"), STOP)
    ask("Pod", pod("gated", 2, schedulingGates=[{"name": CONTROLLER}]), AdmitOperation(slots=SLOTS))
    ask("Job", job("plain", 2), Notify(gpus=2.0, idle_s=3600.0, grace_s=600.0))
    ask("Node", node("broken"), Cordon(on=True, reason="XID 79"), SubjectKind.NODE)
    ask("Node", node("idle"), Offer(on=True, reason="idle"), SubjectKind.NODE)
    notes = {PREFIX + "scale": "true", PREFIX + "max-replicas": "9"}
    service = {"metadata": meta("chat", "team", annotations=notes), "spec": {"replicas": 1}}
    ask("Deployment", service, Scale(replicas=3, until_s=NOW_S + 900.0), SubjectKind.SERVICE)
    shelf.put("ResourceFlavor", {"metadata": meta("h100"), "spec": {}})
    return asks


def told(cases: Sequence[Case]) -> tuple[dict[str, Any], list[Outcome]]:
    """What is written to honest objects and answered about them, and the answers about hostile ones."""
    shelf, view = Shelf(), View(bad=cases)
    asks, bad = honest(shelf, view), []
    for number, each in enumerate(cases):
        shelf.objects[each.path] = each.body
        subject, operations = FOR.get(each.identity.kind, (SubjectKind.WORKLOAD, ()))
        view.there[each.identity.uid] = Found(0, (each.identity,))
        about = Subject(subject, each.identity.name, each.identity.uid, 0)
        if operations:  # one after the other, with the number of the object
            operation = operations[each.number // len(TYPES) % len(operations)]
            bad.append(Instruction(f"2/p/{number}", about, operation, NOW_S + 300.0, 1, "p"))
    upkeep = (ActiveCheck(), OldPlacements(), AbandonedRecuts(), OldOffers(), OldCeilings(), OldRequests())
    actuator = KubernetesActuator(ShelfApi(shelf), view, upkeep=(*upkeep, LeftoverRetries()))
    failed = [actuator.apply(each, NOW_S) for each in bad]
    answers = {each.id: actuator.apply(each, NOW_S) for each in asks}
    for after_s in (40.0, 200.0):  # beyond the patience with reservations, and every look of the upkeep
        for outcome in actuator.advance(NOW_S + after_s, 1, [*asks, *bad]):
            if outcome.instruction_id in answers:
                answers[outcome.instruction_id] = outcome
            else:
                failed.append(outcome)
    facts = {each.id: (answers[each.id].kind, answers[each.id].reason) for each in asks}
    return {"writes": shelf.writes, "answers": facts}, failed


@lru_cache
def _alone() -> tuple[dict[str, Any], list[str]]:
    """What is done without hostile objects."""
    return told(())[0], opened(())[0]


def differing(numbers: Sequence[int]) -> list[str]:
    """The objects beside which honest work is not treated as without them, or whose own effects fail roughly."""
    cases = [hostile(each) for each in numbers]
    facts, failed = told(cases)
    rough = [each.reason for each in failed if ROUGH.search(each.reason) or not each.reason.isprintable()]
    writes, left, _ = opened(cases)
    if (facts, writes, left, rough) == (*_alone(), "", []):
        return []
    if len(cases) == 1:
        return [f"{cases[0].what} -> {str(rough or left or facts)[:1000]}"]
    half = len(numbers) // 2
    each = [*differing(numbers[:half]), *differing(numbers[half:])]
    return each or [f"{cases[0].what} ... {cases[-1].what}: only together"]


def opened(cases: Sequence[Case]) -> tuple[list[str], str, list[str]]:
    """What the watchdog writes to honest objects, why it is not done, and what it left alone."""
    shelf = Shelf()
    mark = {"id": "1/p/x", "reason": "preempt", "returns": True}
    managed = [{"manager": "gpu-autopilot", "fieldsV1": {"f:spec": {"f:suspend": {}, "f:active": {}}}}]
    strategy = {"admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}, {"name": "other"}]}}
    shelf.put("ClusterQueue", {"metadata": meta("gpus"), "spec": strategy})
    gated = job("gated", annotations={GATED_BY: f"{CONTROLLER},example.com/other"})
    stopped = job("stopped", suspend=True, annotations={STOPPED: json.dumps({**mark, "uid": "uid-team-stopped"})})
    stopped["metadata"]["managedFields"] = managed
    out = workload("out", active=False)
    out["metadata"] |= {
        "annotations": {STOPPED: json.dumps({**mark, "uid": "uid-team-out"})},
        "managedFields": managed,
    }
    shelf.put("Job", gated)
    shelf.put("Job", stopped)
    shelf.put("Workload", out)
    shelf.put("Pod", pod("waits", schedulingGates=[{"name": CONTROLLER}]))
    ceiling = {"id": "1/p/s", "replicas": 0, "until": 1e12, "owner": 3, "ours": 0, "generation": 1, "revision": ""}
    for kind in ("Deployment", "StatefulSet"):
        data = meta("chat", "team", annotations={PREFIX + CEILING: json.dumps(ceiling)})
        shelf.put(kind, {"metadata": data, "spec": {"replicas": 0}})
    for each in cases:
        shelf.objects[each.path] = each.body
    removal = Removal(DogApi(shelf), lambda: "")
    return shelf.writes, removal.run(), removal.unread
