"""Columns of everything but pods and what makes pods."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from apiserver.tables.columns import AGE, NAME, NAME_TEXT, Cells, Column, Printer, age, since
from apiserver.tables.workloads import NONE, selector_text

Obj = dict[str, Any]
Cell = Callable[[Obj], Any]
ROLE = "node-role.kubernetes.io/"


def _simple(*middle: tuple[Column, Cell]) -> Printer:
    """Name, some cells of the object alone, age."""

    def cells(obj: Obj, now: datetime) -> list[Any]:
        return [obj["metadata"]["name"], *(cell(obj) for _, cell in middle), age(obj, now)]

    return Printer((NAME, *(column for column, _ in middle), AGE), cells)


def _at(obj: Obj, *path: str) -> Any:
    value: Any = obj
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(*path: str, absent: str = NONE) -> Cell:
    return lambda obj: str(_at(obj, *path)) if _at(obj, *path) not in {None, ""} else absent


def _yes(*path: str) -> Cell:
    return lambda obj: bool(_at(obj, *path))


def _count(*path: str) -> Cell:
    return lambda obj: len(_at(obj, *path) or ())


# --- nodes --------------------------------------------------------------------------------------

NODE_COLUMNS = (
    NAME,
    Column("Status", "The status of the node"),
    Column("Roles", "The roles of the node"),
    AGE,
    Column("Version", "Kubelet Version reported by the node."),
    Column("Internal-IP", "The internal IP address of the node", priority=1),
    Column("External-IP", "The external IP address of the node", priority=1),
    Column("OS-Image", "OS Image reported by the node from /etc/os-release (e.g. Debian GNU/Linux 7 (wheezy)).",
           priority=1),
    Column("Kernel-Version", "Kernel Version reported by the node from 'uname -r' (e.g. 3.16.0-0.bpo.4-amd64).",
           priority=1),
    Column("Container-Runtime", "ContainerRuntime Version reported by the node through runtime remote API (e.g. "
           "containerd://1.4.2).", priority=1),
)  # fmt: skip


def _node_cells(node: Obj, now: datetime) -> list[Any]:
    status, metadata = node.get("status") or {}, node["metadata"]
    info = status.get("nodeInfo") or {}
    ready = next((each for each in status.get("conditions") or [] if each["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if (node.get("spec") or {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    kernel, machine = info.get("kernelVersion") or "", info.get("architecture") or ""
    addresses = {each["type"]: each["address"] for each in reversed(status.get("addresses") or [])}
    return [
        metadata["name"],
        ",".join(words),
        _roles(metadata.get("labels") or {}),
        age(node, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or "<unknown>",
        (f"{kernel} ({machine})" if machine else kernel) or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _roles(labels: Obj) -> str:
    names = {key.removeprefix(ROLE) for key in labels if key.startswith(ROLE)}
    names |= {value for key, value in labels.items() if key == "kubernetes.io/role" and value}
    return ",".join(sorted(name for name in names if name)) or NONE


# --- events -------------------------------------------------------------------------------------

EVENT_COLUMNS = (
    Column("Last Seen", "The time at which the most recent occurrence of this event was recorded."),
    Column("Type", "Type of this event (Normal, Warning), new types could be added in the future"),
    Column("Reason", "This should be a short, machine understandable string that gives the reason for the transition "
           "into the object's current status."),
    Column("Object", "The object that this event is about."),
    Column("Subobject", "If referring to a piece of an object instead of an entire object, this string should contain "
           "a valid JSON/Go field access statement, such as desiredState.manifest.containers[2]. For example, if the "
           "object reference is to a container within a pod, this would take on a value like: "
           '"spec.containers{name}" (where "name" refers to the name of the container that triggered the event) or if '
           'no container name is specified "spec.containers[2]" (container with index 2 in this pod). This syntax is '
           "chosen only to have some well-defined way of referencing a part of an object.", priority=1),
    Column("Source", "The component reporting this event. Should be a short machine understandable string.",
           priority=1),
    Column("Message", "A human-readable description of the status of this operation."),
    Column("First Seen", "The time at which the event was first recorded. (Time of server receipt is in TypeMeta.)",
           priority=1),
    Column("Count", "The number of times this event has occurred.", priority=1),
    Column("Name", NAME_TEXT, format="name", priority=1),
)  # fmt: skip


def _event_cells(event: Obj, now: datetime) -> list[Any]:
    # both shapes: core/v1, and events.k8s.io/v1
    about = event.get("involvedObject") or event.get("regarding") or {}
    source = event.get("source") or event.get("deprecatedSource") or {}
    first = event.get("firstTimestamp") or event.get("deprecatedFirstTimestamp")
    last = event.get("lastTimestamp") or event.get("deprecatedLastTimestamp")
    micro = event.get("eventTime")
    series = event.get("series") or {}
    component = source.get("component") or event.get("reportingComponent") or event.get("reportingController") or ""
    host = source.get("host") or event.get("reportingInstance") or ""
    first_seen = since(first or micro, now)
    last_seen = since(series.get("lastObservedTime") or last, now) if series or last else first_seen
    count = series.get("count") or event.get("count") or event.get("deprecatedCount") or 1
    kind = about.get("kind", "").lower()
    return [
        last_seen,
        event.get("type", ""),
        event.get("reason", ""),
        f"{kind}/{about['name']}" if about.get("name") else kind,
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        (event.get("message") or event.get("note") or "").strip(),
        first_seen,
        count,
        event["metadata"]["name"],
    ]


# --- the rest -----------------------------------------------------------------------------------

CONFIG_DATA_TEXT = (
    "Data contains the configuration data. Each key must consist of alphanumeric characters, '-', '_' or '.'. Values "
    "with non-UTF-8 byte sequences must use the BinaryData field. The keys stored in Data must not overlap with the "
    "keys in the BinaryData field, this is enforced during validation process."
)


def _addresses(service: Obj) -> str:
    found = [each.get("ip") or each.get("hostname") for each in _at(service, "status", "loadBalancer", "ingress") or ()]
    return ",".join([*found, *(_at(service, "spec", "externalIPs") or ())]) or NONE


def _ports(service: Obj) -> str:
    texts = []
    for each in _at(service, "spec", "ports") or ():
        node = f":{each['nodePort']}" if each.get("nodePort") else ""
        texts.append(f"{each['port']}{node}/{each.get('protocol', 'TCP')}")
    return ",".join(texts) or NONE


def _role_ref(binding: Obj) -> str:
    return f"{_at(binding, 'roleRef', 'kind')}/{_at(binding, 'roleRef', 'name')}"


def _subjects(kind: str) -> Cell:
    def cell(binding: Obj) -> str:
        named = [each for each in binding.get("subjects") or () if each.get("kind") == kind]
        prefix = [f"{each['namespace']}/" if kind == "ServiceAccount" else "" for each in named]
        return ", ".join(f"{before}{each['name']}" for before, each in zip(prefix, named, strict=True))

    return cell


BINDING_COLUMNS = (
    (Column("Role", "RoleRef can reference a Role in the current namespace or a ClusterRole in the global namespace."),
     _role_ref),
)  # fmt: skip
SUBJECTS = tuple(
    (Column(title, f"{title} in the roleBinding", priority=1), _subjects(kind))
    for title, kind in (("Users", "User"), ("Groups", "Group"), ("ServiceAccounts", "ServiceAccount"))
)


def _binding_printer() -> Printer:
    def cells(obj: Obj, now: datetime) -> list[Any]:
        return [obj["metadata"]["name"], _role_ref(obj), age(obj, now), *(cell(obj) for _, cell in SUBJECTS)]

    return Printer((NAME, BINDING_COLUMNS[0][0], AGE, *(column for column, _ in SUBJECTS)), cells)


def _created_at() -> Printer:
    column = Column("Created At", AGE.description)
    cells: Cells = lambda obj, _now: [obj["metadata"]["name"], obj["metadata"].get("creationTimestamp")]  # noqa: E731
    return Printer((NAME, column), cells)


def _quota_text(field: str) -> Cell:
    def cell(quota: Obj) -> str:
        hard, used = _at(quota, "status", "hard") or _at(quota, "spec", "hard") or {}, _at(quota, "status", "used")
        names = sorted(name for name in hard if name.startswith("limits.") is (field == "limit"))
        return ", ".join(f"{name}: {(used or {}).get(name, '0')}/{hard[name]}" for name in names)

    return cell


def _percent_or_number(*path: str) -> Cell:
    return lambda obj: "N/A" if _at(obj, *path) is None else str(_at(obj, *path))


def _claim_state(claim: Obj) -> str:
    states = []
    if claim["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    if _at(claim, "status", "allocation"):
        states.append("allocated")
        if _at(claim, "status", "reservedFor"):
            states.append("reserved")
    else:
        states.append("pending")
    return ",".join(states)


def _vap_printer() -> Printer:
    return _simple(
        (
            Column(
                "Validations",
                "Validations contain CEL expressions which is used to apply the validation.",
                type="integer",
            ),
            _count("spec", "validations"),
        ),
        (
            Column("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy"),
            lambda obj: (
                "/".join(
                    filter(None, (_at(obj, "spec", "paramKind", "apiVersion"), _at(obj, "spec", "paramKind", "kind")))
                )
                or "<unset>"
            ),
        ),
    )


PRINTERS = {
    "nodes": Printer(NODE_COLUMNS, _node_cells),
    "events": Printer(EVENT_COLUMNS, _event_cells),
    "events.events.k8s.io": Printer(EVENT_COLUMNS, _event_cells),
    "namespaces": _simple((Column("Status", "The status of the namespace"), _text("status", "phase", absent=""))),
    "configmaps": _simple((Column("Data", CONFIG_DATA_TEXT), lambda o: _count("data")(o) + _count("binaryData")(o))),
    "secrets": _simple(
        (Column("Type", "Used to facilitate programmatic handling of secret data. More info: "
                "https://kubernetes.io/docs/concepts/configuration/secret/#secret-types"), _text("type", absent="")),
        (Column("Data", "Data contains the secret data. Each key must consist of alphanumeric characters, '-', '_' or "
                "'.'. The serialized form of the secret data is a base64 encoded string, representing the arbitrary "
                "(possibly non-string) data value here. Described in https://tools.ietf.org/html/rfc4648#section-4"),
         _count("data")),
    ),
    "serviceaccounts": _simple((Column("Secrets", type="string"), _count("secrets"))),
    "services": _simple(
        (Column("Type"), _text("spec", "type", absent="ClusterIP")),
        (Column("Cluster-IP"), _text("spec", "clusterIP")),
        (Column("External-IP"), _addresses),
        (Column("Port(s)"), _ports),
    ),
    "leases.coordination.k8s.io": _simple(
        (Column("Holder", "holderIdentity contains the identity of the holder of a current lease. If Coordinated "
                "Leader Election is used, the holder identity must be equal to the elected "
                "LeaseCandidate.metadata.name field."), _text("spec", "holderIdentity", absent=""))
    ),
    "poddisruptionbudgets.policy": _simple(
        (Column("Min Available", "The minimum number of pods that must be available."),
         _percent_or_number("spec", "minAvailable")),
        (Column("Max Unavailable", "The maximum number of pods that may be unavailable."),
         _percent_or_number("spec", "maxUnavailable")),
        (Column("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time.",
                type="integer"), lambda obj: _at(obj, "status", "disruptionsAllowed") or 0),
    ),
    "priorityclasses.scheduling.k8s.io": _simple(
        (Column("Value", "value represents the integer value of this priority class. This is the actual priority that "
                "pods receive when they have the name of this class in their pod spec.", type="integer"),
         lambda obj: obj.get("value", 0)),
        (Column("Global-Default", "globalDefault specifies whether this PriorityClass should be considered as the "
                "default priority for pods that do not have any priority class. Only one PriorityClass can be marked "
                "as `globalDefault`. However, if more than one PriorityClasses exists with their `globalDefault` field "
                "set to true, the smallest value of such global default PriorityClasses will be used as the default "
                "priority.", type="boolean"), _yes("globalDefault")),
        (Column("PreemptionPolicy", "preemptionPolicy is the Policy for preempting pods with lower priority. One of "
                "Never, PreemptLowerPriority. Defaults to PreemptLowerPriority if unset."),
         _text("preemptionPolicy", absent="PreemptLowerPriority")),
    ),
    "resourcequotas": _simple(
        (Column("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
         _quota_text("request")),
        (Column("Limit", "Limits control the maximum amount of cpu/memory that a container may use independent of "
                "contention on the node."), _quota_text("limit")),
    ),
    "limitranges": _created_at(),
    "roles.rbac.authorization.k8s.io": _created_at(),
    "clusterroles.rbac.authorization.k8s.io": _created_at(),
    "rolebindings.rbac.authorization.k8s.io": _binding_printer(),
    "clusterrolebindings.rbac.authorization.k8s.io": _binding_printer(),
    "customresourcedefinitions.apiextensions.k8s.io": _created_at(),
    "validatingadmissionpolicies.admissionregistration.k8s.io": _vap_printer(),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": _simple(
        (Column("PolicyName"), _text("spec", "policyName")),
        (Column("ParamRef"), _text("spec", "paramRef", "name", absent="<unset>")),
    ),
    "resourceclaims.resource.k8s.io": _simple((Column("State", "A summary of the current state (allocated, pending, "
                                                      "reserved, etc.)."), _claim_state)),
    "resourceclaimtemplates.resource.k8s.io": _simple(),
    "deviceclasses.resource.k8s.io": _simple(),
    "resourceslices.resource.k8s.io": _simple(
        (Column("Node"), _text("spec", "nodeName", absent="<unset>")),
        (Column("Driver"), _text("spec", "driver", absent="")),
        (Column("Pool"), _text("spec", "pool", "name", absent="")),
    ),
    "networkpolicies.networking.k8s.io": _simple(
        (Column("Pod-Selector"), lambda obj: selector_text(_at(obj, "spec", "podSelector")))
    ),
}  # fmt: skip
"""By resource."""
