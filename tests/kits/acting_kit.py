"""A cluster with Kueue behind a socket, its clock in the hands of the test, and an actuator in front of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Answer, Api, Ref, Refusal
from actuators.kubernetes.events import Events
from actuators.kubernetes.levers.base import Tools
from actuators.kubernetes.writing import Writer
from apiserver.actors.base import CONTROLLER_MANAGER
from apiserver.http.faults import Faults
from apiserver.http.serve import Running, serve
from apiserver.kueue.config import Config
from apiserver.requests import Response
from apiserver.server import Server
from apiserver.timeline import US
from autopilot.contract.annotations import CHECK, CONTROLLER, PLACEMENT
from autopilot.core.effects.admit import AdmitOperation
from autopilot.core.effects.evict import EvictOperation
from autopilot.core.model.objects import Slot, Subject, SubjectKind
from autopilot.core.model.records import Instruction
from autopilot.core.model.stops import Save, StopReason
from autopilot.core.model.verb import Operation
from tests.kits.apiserver_kit import START, Asker
from tests.kits.kube_objects import node
from tests.kits.kueue_kit import JOBS, ROOT, SPACE, KueueCluster
from tests.kits.rights_kit import ByKind, Rights

Obj = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods"
CHECKED = {"admissionChecks": [{"name": CHECK}]}
TIME = "2026-11-23T00:00:00Z"


def pod_spec(gpus: int) -> Obj:
    """One container with GPUs."""
    resources = {"cpu": "1", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "app:1", "resources": {"requests": resources, "limits": resources}}
    return {"restartPolicy": "Never", "containers": [container]}


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


class Locked(Asker):
    """Requests that wait while the server answers somebody else."""

    def __init__(self, server: Server, lock: RLock) -> None:
        super().__init__(server)
        self._lock = lock

    def response(self, *words: Any, **query: Any) -> Response:
        """The answer."""
        with self._lock:
            return super().response(*words, **query)


class Silent(Api):
    """An API server that does not answer reads of pods while `silent`; of those in `only`, where it is given."""

    silent, only = True, frozenset[str]()

    def read(self, ref: Ref) -> Answer:
        """Nothing comes back."""
        deaf = self.silent and ref.kind == "Pod" and (not self.only or ref.name in self.only)
        return Answer({}, Refusal.UNREACHABLE, "no answer", 0) if deaf else super().read(ref)


class Acting:
    """A cluster with nodes n1, n2, ... of eight GPUs each, Kueue, and our AdmissionCheck on queue `a`."""

    rights: Rights

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        start: datetime = START,
        *,
        tls: bool = False,
        config: Config | None = None,
        fresh: bool = False,
    ) -> None:
        """`folder`: for the kubeconfig. `start`: the time of the server. `tls`: kubectl sends no token without it.
        `config`: of Kueue. `fresh`: nothing of ours is there, so there are no accounts of levers.
        """
        self.kueue = KueueCluster(config, start)
        self.faults = Faults()
        self.running: Running = serve(self.kueue.server, faults=self.faults, tls=tls)
        self.ask = self.kueue.ask = Locked(self.kueue.server, self.running.clock.lock)
        self._hold = ExitStack()
        self._hold.enter_context(self.running.clock.hold())
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(self.running.kubeconfig(), "utf-8")
        if not fresh:
            self.rights = Rights(self.kueue.server, self.running, folder)
        for number in range(1, nodes + 1):
            self.add_node(f"n{number}")
        self.run(1)

    def close(self) -> None:
        """Stop listening."""
        self._hold.close()
        self.running.close()

    def release(self) -> None:
        """From now on time runs by itself."""
        self._hold.close()

    # --- the cluster --------------------------------------------------------------------------

    def stop_controllers(self, *, stopped: bool = True) -> None:
        """Stop kube-controller-manager, which makes and deletes the pods of Jobs, or let it go on."""
        process = self.kueue.server.process(CONTROLLER_MANAGER)
        (process.stop if stopped else process.resume)()

    @property
    def now_s(self) -> float:
        """The time of the server."""
        return self.kueue.server.timeline.now.timestamp()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        with self.running.clock.lock:
            timeline = self.kueue.server.timeline
            timeline.run_until_us(timeline.now_us + round(seconds * US))

    def add_node(self, name: str, gpus: int = 8) -> None:
        """A ready node of flavor h100."""
        found = node(name, gpus, labels={"gpu": "h100"})
        made = {"name": name, "labels": found["metadata"]["labels"]}
        self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": made})
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": found["status"]})

    def add_check(self, *, active: bool = True) -> None:
        """Our AdmissionCheck; `active`: as if a controller served it."""
        self.kueue.create("AdmissionCheck", "admissionchecks", CHECK, {"controllerName": CONTROLLER})
        if active:
            self.serve_check()

    def check_is_active(self) -> bool:
        """Whether somebody serves our check."""
        found = self.ask("GET", f"{ROOT}/admissionchecks/{CHECK}").get("status", {}).get("conditions", ())
        return any(each["type"] == "Active" and each["status"] == "True" for each in found)

    def serve_check(self) -> None:
        """Set the condition of our check."""
        condition = {"type": "Active", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": TIME}
        self.ask("PATCH", f"{ROOT}/admissionchecks/{CHECK}/status", {"status": {"conditions": [condition]}})

    def workload(self, job: str) -> Obj:
        """The Workload of a Job."""
        return self.kueue.workload(job)

    def waiting_job(self, name: str, gpus: int, pods: int = 1, queue: str = "a", **more: Any) -> str:
        """A Job in a queue, some time after its creation; its uid."""
        uid: str = self.kueue.job(name, queue, gpus, pods, **more)["metadata"]["uid"]
        self.run(2)
        return uid

    def running_job(self, name: str, *nodes: str, number: str = "") -> str:
        """A Job that was admitted by our check and runs on these nodes; its uid."""
        uid = self.waiting_job(name, 8, len(nodes))
        self.actuator().apply(self.instruction(uid, admit(*nodes), number=number or f"0/p/{name}"), self.now_s)
        self.run(5)
        assert {each["status"]["phase"] for each in self.pods(name)} == {"Running"}
        return uid

    def plain_job(self, name: str, gpus: int = 8, pods: int = 1, *, labels: Obj | None = None, **spec: Any) -> str:
        """A Job without Kueue; its uid."""
        notes = spec.pop("annotations", {})
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "labels": labels or {}, "annotations": notes},
            "spec": {"parallelism": pods, "completions": pods, "template": {"spec": pod_spec(gpus)}, **spec},
        }
        uid: str = self.ask("POST", JOBS, body)["metadata"]["uid"]
        self.run(3)
        return uid

    def pod(
        self,
        name: str,
        gpus: int = 8,
        *,
        gates: tuple[str, ...] = (),
        owner: Obj | None = None,
        claim: str = "",
        **labels: str,
    ) -> str:
        """A pod; its uid."""
        meta = {"name": name, "labels": labels, **({"ownerReferences": [owner]} if owner else {})}
        spec = {**pod_spec(gpus), **({"schedulingGates": [{"name": each} for each in gates]} if gates else {})}
        if claim:
            spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
        uid: str = self.ask("POST", PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})[
            "metadata"
        ]["uid"]
        self.run(2)
        return uid

    def finish(self, *names: str) -> None:
        """Take Jobs and pods away."""
        for name in names:
            self.ask.response("DELETE", f"{JOBS}/{name}", propagationPolicy="Background")
        for each in self.pods():
            self.ask.response("DELETE", f"{PODS}/{each['metadata']['name']}", {"gracePeriodSeconds": 1})
        self.run(40)

    def job(self, name: str) -> Obj:
        """A Job."""
        found: Obj = self.ask("GET", f"{JOBS}/{name}")
        return found

    def pods(self, job: str = "") -> list[Obj]:
        """Pods, those of a Job or all."""
        found: list[Obj] = self.ask("GET", PODS)["items"]
        return [each for each in found if not job or each["metadata"].get("labels", {}).get("job-name") == job]

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and note of the Events of ours on an object."""
        found = self.ask("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [
            (each["reason"], each["note"])
            for each in found
            if each["regarding"]["name"] == name and each.get("reportingController", "").startswith("gpu-autopilot")
        ]

    # --- the actuator -------------------------------------------------------------------------

    def actuator(self, **more: Any) -> ByKind:
        """A new process; each kind of instruction has the rights of that kind and no others."""
        return ByKind(lambda kind: KubernetesActuator(self.api(kind), self, **more))

    def api(self, kind: str) -> Api:
        """Requests with the rights of a kind of instruction. They take no time, however busy the machine is."""
        return Api(self.rights.access(kind), steady_s=lambda: self.now_s)

    def tools(self, kind: str = "admit") -> Tools:
        """What levers and the upkeep work with, with the rights of a kind of instruction."""
        api = self.api(kind)
        return Tools(api, Writer(api), Events(api, "test"), self)

    def find(self, kind: str, uid: str) -> Found | None:
        """The objects of a Job, or of a pod (port `Objects`)."""
        objects = []
        spaces = {"Job": JOBS, "Pod": PODS, "Workload": f"{SPACE}/workloads"}
        count = 0
        for title, path in spaces.items():
            for each in self.ask("GET", path)["items"]:
                meta = each["metadata"]
                owners = {owner["uid"] for owner in meta.get("ownerReferences", ())}
                group = meta.get("labels", {}).get("group")
                if meta["uid"] == uid or uid in owners or (group and uid == f"group/default/{group}"):
                    objects.append(Identity(title, "default", meta["name"], meta["uid"]))
                    stats = each.get("status", {}).get("schedulingStats", {}).get("evictions", ())
                    count += sum(found["count"] for found in stats)
        return Found(count, tuple(objects)) if objects else None

    def revision(self, uid: str) -> int:
        """The incarnation of work."""
        found = self.find("workload", uid)
        assert found is not None
        return found.incarnation

    def changing(self) -> Iterator[tuple[Identity, str]]:
        """No node changes."""
        yield from ()

    def ceiled(self) -> Iterator[tuple[Identity, str]]:
        """No service has a ceiling."""
        yield from ()

    def offered(self) -> Iterator[Identity]:
        """No node is offered back."""
        yield from ()

    def left_over(self) -> Iterator[Identity]:
        """Every Workload: the upkeep reads what it says."""
        for each in self.ask("GET", f"{SPACE}/workloads")["items"]:
            yield Identity("Workload", "default", each["metadata"]["name"], each["metadata"]["uid"])

    def reservations(self, uids: Sequence[str]) -> Iterator[Identity]:
        """The Workloads of the Jobs with these uids."""
        found = [each["metadata"] for each in self.ask("GET", f"{SPACE}/workloads")["items"]]
        for uid in uids:
            for meta in found:
                if uid in {owner["uid"] for owner in meta.get("ownerReferences", ())}:
                    yield Identity("Workload", "default", meta["name"], meta["uid"])

    def taken(self) -> Iterator[Identity]:
        """Every Workload: the upkeep reads what it says."""
        yield from self.left_over()

    def placed(self) -> Iterator[tuple[str, str, str]]:
        """Labels of placements on nodes."""
        for each in self.ask("GET", "/api/v1/nodes")["items"]:
            for key in each["metadata"].get("labels", {}):
                if key.startswith(PLACEMENT):
                    yield each["metadata"]["name"], each["metadata"]["uid"], key

    def uids(self) -> Iterator[str]:
        """Uids of Jobs that have not ended."""
        for each in self.ask("GET", JOBS)["items"]:
            ended = {"Complete", "Failed"} & {row["type"] for row in each.get("status", {}).get("conditions", ())}
            if not ended:
                yield each["metadata"]["uid"]

    def instruction(
        self, uid: str, operation: Operation, *, number: str = "1/p/w", revision: int = 0, fence: int = 1, **more: Any
    ) -> Instruction:
        """An instruction about work, due in a minute."""
        subject = Subject(SubjectKind.WORKLOAD, "default/w", uid, revision)
        deadline_s = more.pop("deadline_s", self.now_s + 60.0)
        return Instruction(number, subject, operation, deadline_s, fence, "p", **more)


def admit(*nodes: str) -> AdmitOperation:
    """Start on eight GPUs of each of these nodes."""
    return AdmitOperation(slots=tuple(Slot(name, f"{name}/{gpu}") for name in nodes for gpu in range(8)))


def evict(reason: StopReason = StopReason.PREEMPT, grace_s: float = 120.0, save: Save = Save.TRY) -> EvictOperation:
    """Stop work."""
    return EvictOperation(reason=reason, grace_s=grace_s, save=save)
