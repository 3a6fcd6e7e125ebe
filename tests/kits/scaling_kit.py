"""Services on our API server, and instructions that set their floors and ceilings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any

from actuators.kubernetes.actuator import KubernetesActuator
from autopilot.contract.scaling import CEILING
from autopilot.contract.tree import PREFIX
from autopilot.core.idle.ceiling import Ceiling
from autopilot.core.model.objects import Subject, SubjectKind
from autopilot.core.model.records import Outcome
from autopilot.core.model.verb import Operation
from autopilot.core.replicas.scale import Scale
from tests.kits.acting_kit import Acting, Found, Identity

Obj = dict[str, Any]
APPS = "/apis/apps/v1/namespaces/default"
HPAS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
NUMBER = count()


class Scaling:
    """Services on a server, and floors for them."""

    def __init__(self, acting: Acting, kind: str = "scale") -> None:
        """`kind`: of the instructions; the actuator has exactly the rights for them."""
        self.acting, self.ask = acting, acting.ask
        self._kind = kind

    @cached_property
    def actuator(self) -> KubernetesActuator:
        """With the rights of the kind."""
        return KubernetesActuator(self.acting.api(self._kind), self)

    # port Objects

    def find(self, kind: str, uid: str) -> Found | None:
        """A service by its uid."""
        for title, plural in (("Deployment", "deployments"), ("StatefulSet", "statefulsets")):
            for each in self.ask("GET", f"{APPS}/{plural}")["items"]:
                meta = each["metadata"]
                if meta["uid"] == uid and kind == "service":
                    return Found(meta["generation"], (Identity(title, "default", meta["name"], uid),))
        return None

    def changing(self) -> Iterator[tuple[Identity, str]]:
        """No node changes."""
        yield from ()

    def offered(self) -> Iterator[Identity]:
        """No node is offered back."""
        yield from ()

    def ceiled(self) -> Iterator[tuple[Identity, str]]:
        """The services with a record of a ceiling."""
        for each in self.ask("GET", f"{APPS}/deployments")["items"]:
            meta = each["metadata"]
            text = meta.get("annotations", {}).get(PREFIX + CEILING, "")
            if text:
                yield Identity("Deployment", "default", meta["name"], meta["uid"]), text

    def left_over(self) -> Iterator[Identity]:
        """No Retry is left over."""
        yield from ()

    def reservations(self, uids: Sequence[str]) -> Iterator[Identity]:
        """None."""
        yield from ()

    def taken(self) -> Iterator[Identity]:
        """None."""
        yield from ()

    def placed(self) -> Iterator[tuple[str, str, str]]:
        """No node is marked."""
        yield from ()

    def uids(self) -> Iterator[str]:
        """No work."""
        yield from ()

    # the test's side

    def service(self, replicas: int = 2, annotations: Obj | None = None, plural: str = "deployments") -> str:
        """A service; its name."""
        name = f"chat-{next(NUMBER)}"
        labels = {"app": name}
        spec = {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "app:1"}]},
            },
        }
        if plural == "statefulsets":
            spec["serviceName"] = name
        kind = {"deployments": "Deployment", "statefulsets": "StatefulSet"}[plural]
        metadata = {"name": name, "annotations": annotations or {}}
        self.ask(
            "POST", f"{APPS}/{plural}", {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}
        )
        return name

    def autoscaler(self, name: str, *metrics: Obj, low: int = 2, most: int = 8, owner: Obj | None = None) -> None:
        """The HPA of a Deployment."""
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        spec = {"scaleTargetRef": target, "minReplicas": low, "maxReplicas": most, "metrics": list(metrics)}
        metadata = {"name": name, "ownerReferences": [owner] if owner else []}
        body = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": metadata, "spec": spec}
        self.ask("POST", HPAS, body)

    def read(self, name: str, plural: str = "deployments") -> Obj:
        """The service as it is."""
        found: Obj = self.ask("GET", f"{APPS}/{plural}/{name}")
        return found

    def replicas(self, name: str, plural: str = "deployments") -> int:
        """Its number of replicas."""
        return int(self.read(name, plural)["spec"]["replicas"])

    def minimum(self, name: str) -> int:
        """MinReplicas of its HPA."""
        return int(self.ask("GET", f"{HPAS}/{name}")["spec"]["minReplicas"])

    def floor(self, name: str, replicas: int, plural: str = "deployments", **more: Any) -> Outcome:
        """An instruction to set its floor for half an hour, carried out."""
        until_s = more.pop("until_s", self.acting.now_s + 1800.0 if replicas else self.acting.now_s)
        return self._sent(name, Scale(replicas=replicas, until_s=until_s), plural, **more)

    def ceiling(self, name: str, replicas: int, plural: str = "deployments", **more: Any) -> Outcome:
        """An instruction to set its ceiling for half an hour (-1: to end it), carried out."""
        until_s = more.pop("until_s", self.acting.now_s + 1800.0 if replicas >= 0 else self.acting.now_s)
        ceiling = Ceiling(replicas=replicas, until_s=until_s, had=2, gpus=1.0, owner="t/ann")
        return self._sent(name, ceiling, plural, **more)

    def _sent(self, name: str, operation: Operation, plural: str, **more: Any) -> Outcome:
        meta, now_s = self.read(name, plural)["metadata"], self.acting.now_s
        made = self.acting.instruction(meta["uid"], operation, number=more.pop("number", f"{next(NUMBER)}/p/s"))
        subject = Subject(SubjectKind.SERVICE, f"default/{name}", meta["uid"], meta["generation"])
        actuator: KubernetesActuator = more.pop("actuator", self.actuator)
        return actuator.apply(replace(made, subject=subject), now_s)

    def set_by_hand(self, name: str, replicas: int) -> None:
        """A person scales it."""
        self.ask("PATCH", f"{APPS}/deployments/{name}/scale", {"spec": {"replicas": replicas}})
