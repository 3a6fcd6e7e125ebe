"""Priority: fills spec.priority of a pod from its class."""

from __future__ import annotations

from typing import Any

from apiserver.admission.base import Attributes
from apiserver.errors import StatusError, forbidden
from apiserver.kinds.base import State

Obj = dict[str, Any]
CLASSES = "priorityclasses.scheduling.k8s.io"
PREEMPTS = "PreemptLowerPriority"


class Priority:
    """A pod states a class; the number is the server's. Without a class it gets the global default, or 0."""

    name = "Priority"

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Fill the priority of a new pod, or refuse its class or its own number."""
        if not attributes.concerns("pods", "CREATE"):
            return
        spec = attributes.obj.setdefault("spec", {})
        wanted = spec.get("priorityClassName", "")
        found = server.store.get(CLASSES, "", wanted) if wanted else _default(server)
        if wanted and found is None:
            raise _refused(attributes, f"no PriorityClass with name {wanted} was found")
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
        value = found["value"] if found is not None else 0
        policy = (found or {}).get("preemptionPolicy") or PREEMPTS
        if "priority" in spec and spec["priority"] != value:
            raise _refused(
                attributes,
                f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; priority "
                f"admission controller computed {value} from the given PriorityClass name",
            )
        if spec.get("preemptionPolicy") and spec["preemptionPolicy"] != policy:
            raise _refused(
                attributes,
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
                f"priority admission controller computed {policy} from the given PriorityClass name",
            )
        spec["priority"], spec["preemptionPolicy"] = value, policy

    def validate(self, attributes: Attributes, server: State) -> None:
        """Only one class is the default for the whole cluster."""
        if not attributes.concerns(CLASSES, "CREATE", "UPDATE") or not attributes.obj.get("globalDefault"):
            return
        other = _default(server)
        if other is not None and other["metadata"]["name"] != attributes.name:
            held = other["metadata"]["name"]
            raise _refused(
                attributes,
                f"PriorityClass {held} is already marked as default. Only one PriorityClass can be marked as default",
            )


def _default(server: State) -> Obj | None:
    marked = [each for each in server.store.objects(CLASSES) if each.get("globalDefault")]
    return min(marked, key=lambda each: int(each["value"]), default=None)


def _refused(attributes: Attributes, why: str) -> StatusError:
    return forbidden(attributes.kind.named(attributes.name), why)
