"""ResourceQuota: the total use of a namespace, counted at admission and again after a removal."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from apiserver.admission.base import Attributes
from apiserver.client import Client
from apiserver.errors import forbidden
from apiserver.kinds.base import State
from apiserver.pod_requests import pod_requests
from apiserver.quantity import as_text, parse
from apiserver.store import Event
from apiserver.users import ADMIN

Obj = dict[str, Any]
Amounts = dict[str, Fraction]
QUOTAS = "resourcequotas"
RECOUNT_S = 0.05  # from a deletion, or a new quota, until the status shows it
COMPUTE = ("cpu", "memory", "ephemeral-storage")
COUNTED = (
    "pods",
    "services",
    "secrets",
    "configmaps",
    "resourcequotas",
    "persistentvolumeclaims",
    "replicationcontrollers",
)
BINARY = ("memory", "storage")


class ResourceQuota:
    """Refuses writes beyond a quota of their namespace, and keeps the status of quotas."""

    name = "ResourceQuota"

    def __init__(self, server: State) -> None:
        self._server = server
        self._client = Client(server, ADMIN, "kube-controller-manager")
        server.store.subscribe((QUOTAS, "pods"), self._changed)

    def mutate(self, attributes: Attributes, server: State) -> None:
        """Nothing."""

    def validate(self, attributes: Attributes, server: State) -> None:
        """Count a new object against every quota of its namespace, or refuse it. Raises StatusError 403."""
        if attributes.operation != "CREATE" or attributes.subresource or not attributes.namespace:
            return
        quotas = server.store.objects(QUOTAS, attributes.namespace)
        if not quotas:
            return
        asked = charge(attributes.kind.resource, attributes.obj)
        counted = [(quota, _limited(quota, asked, attributes.obj)) for quota in quotas]
        for quota, amounts in counted:
            self._check(attributes, quota, amounts)
        if not attributes.dry_run:
            for quota, amounts in counted:
                if amounts:
                    self._write(quota, _sum(_used(quota), amounts))

    def _check(self, attributes: Attributes, quota: Obj, amounts: Amounts) -> None:
        name = quota["metadata"]["name"]
        named = attributes.kind.named(attributes.name)
        status = quota.get("status") or {}
        unknown = sorted(each for each in amounts if each not in (status.get("hard") or {}))
        if unknown:
            raise forbidden(named, f"status unknown for quota: {name}, resources: {','.join(unknown)}")
        hard = {each: parse(text) for each, text in (quota["spec"].get("hard") or {}).items()}
        missing = _unstated(attributes, hard)
        if missing:
            raise forbidden(named, f"failed quota: {name}: must specify {missing}")
        used = _used(quota)
        over = sorted(each for each, more in amounts.items() if used.get(each, Fraction(0)) + more > hard[each])
        if over:
            raise forbidden(
                named,
                f"exceeded quota: {name}, requested: {_texts(amounts, over)}, used: {_texts(used, over)}, "
                f"limited: {_texts(hard, over)}",
            )

    def _changed(self, event: Event) -> None:
        old, new = event.old.obj if event.old else {}, event.obj
        if event.resource == "pods":
            ended = event.type == "DELETED" or (_is_over(new) and not _is_over(old))
            if not ended or not self._server.store.count(QUOTAS, new["metadata"].get("namespace", "")):
                return
        elif event.type == "DELETED" or old.get("spec") == new.get("spec"):
            return
        namespace = new["metadata"]["namespace"]
        self._server.timeline.at(RECOUNT_S, lambda: self._recount(namespace))

    def _recount(self, namespace: str) -> None:
        store = self._server.store
        for quota in store.objects(QUOTAS, namespace):
            used: Amounts = dict.fromkeys(quota["spec"].get("hard") or {}, Fraction(0))
            for resource in store.resources():
                if resource == "pods" or f"count/{resource}" in used or resource in used:
                    for obj in store.objects(resource, namespace):
                        if resource != "pods" or not _is_over(obj):
                            used = _sum(used, _limited(quota, charge(resource, obj), obj))
            self._write(quota, used)

    def _write(self, quota: Obj, used: Amounts) -> None:
        hard = quota["spec"].get("hard") or {}
        shown = {each: _text(each, used.get(each, Fraction(0))) for each in hard}
        metadata = quota["metadata"]
        self._client.patch(
            QUOTAS, metadata["namespace"], metadata["name"], {"status": {"hard": hard, "used": shown}}, "status"
        )


def charge(resource: str, obj: Obj) -> Amounts:
    """The counts of an object, under every possible name of a quota."""
    found: Amounts = {f"count/{resource}": Fraction(1)}
    if resource in COUNTED:
        found[resource] = Fraction(1)
    if resource != "pods":
        return found
    spec = obj.get("spec") or {}
    for name, amount in pod_requests(spec).items():
        found[f"requests.{name}"] = amount
        if name in COMPUTE:
            found[name] = amount
    limits: Amounts = {}
    for container in spec.get("containers") or ():
        for name, text in ((container.get("resources") or {}).get("limits") or {}).items():
            limits[f"limits.{name}"] = limits.get(f"limits.{name}", Fraction(0)) + parse(text)
    return found | limits


def _limited(quota: Obj, amounts: Amounts, obj: Obj) -> Amounts:
    """The part limited by a quota; nothing if its scopes leave the object out."""
    if not _in_scope(quota, obj):
        return {}
    hard = (quota.get("spec") or {}).get("hard") or {}
    return {each: amount for each, amount in amounts.items() if each in hard}


def _in_scope(quota: Obj, obj: Obj) -> bool:
    spec, pod = quota.get("spec") or {}, obj.get("spec") or {}
    terms = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or ()]
    terms += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_scope_holds(term, pod) for term in terms)


def _scope_holds(term: Mapping[str, Any], pod: Obj) -> bool:
    match term["scopeName"]:
        case "Terminating":
            return "activeDeadlineSeconds" in pod
        case "NotTerminating":
            return "activeDeadlineSeconds" not in pod
        case "PriorityClass":
            given = pod.get("priorityClassName", "")
            values = term.get("values") or ()
            return {"In": given in values, "NotIn": given not in values, "Exists": bool(given)}.get(
                term["operator"], not given
            )
        case _:
            return True


def _unstated(attributes: Attributes, hard: Mapping[str, Fraction]) -> str:
    """Compute resources limited by a quota and missing from a container of a new pod."""
    if attributes.kind.resource != "pods":
        return ""
    texts = []
    for name in sorted(hard):
        kind, _, resource = name.rpartition(".")
        if resource not in COMPUTE or kind not in {"", "requests", "limits"}:
            continue
        field = "limits" if kind == "limits" else "requests"
        lacking = [
            container["name"]
            for container in attributes.obj["spec"].get("containers") or ()
            if resource not in ((container.get("resources") or {}).get(field) or {})
        ]
        if lacking:
            texts.append(f"{name} for: {','.join(lacking)}")
    return "; ".join(texts)


def _used(quota: Obj) -> Amounts:
    return {each: parse(text) for each, text in ((quota.get("status") or {}).get("used") or {}).items()}


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {each: one.get(each, Fraction(0)) + other.get(each, Fraction(0)) for each in one | other}


def _text(name: str, amount: Fraction) -> str:
    return as_text(amount, binary=name.endswith(BINARY))


def _texts(amounts: Mapping[str, Fraction], names: list[str]) -> str:
    return ",".join(f"{each}={_text(each, amounts.get(each, Fraction(0)))}" for each in names)


def _is_over(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
