"""RBAC: rules, the bindings giving them to a user, and the decision about one request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from apiserver.users import User

Obj = dict[str, Any]
Rule = Mapping[str, Any]

ROLES, CLUSTER_ROLES = "roles.rbac.authorization.k8s.io", "clusterroles.rbac.authorization.k8s.io"
ROLE_BINDINGS = "rolebindings.rbac.authorization.k8s.io"
CLUSTER_ROLE_BINDINGS = "clusterrolebindings.rbac.authorization.k8s.io"
MASTERS = "system:masters"


class Objects(Protocol):
    """The objects read by the decision: the store, or a stand-in."""

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        """An object, or None."""

    def objects(self, resource: str, namespace: str | None = None) -> list[Obj]:
        """The objects of one namespace, or of all."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """A wanted action. A request for a `path` is about no resource."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""  # "" for cluster-scoped resources and for all namespaces
    name: str = ""
    path: str = ""

    @property
    def full_resource(self) -> str:
        """`pods/eviction`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule held by a user, and its source."""

    rule: Rule
    reason: str


def decide(objects: Objects, user: User, wanted: Attributes) -> tuple[bool, str]:
    """True if the user may, and the reason. The reason is "" for a refusal and for members of system:masters."""
    if MASTERS in user.groups:
        return True, ""
    for grant in grants(objects, user, wanted.namespace):
        if allows(grant.rule, wanted):
            return True, grant.reason
    return False, ""


def missing_roles(objects: Objects, user: User, namespace: str, *, none_known: bool = False) -> list[str]:
    """The missing roles named by the bindings of a user. `none_known`: none is read yet."""
    bindings = [(each, "") for each in objects.objects(CLUSTER_ROLE_BINDINGS)]
    bindings += [(each, namespace) for each in (objects.objects(ROLE_BINDINGS, namespace) if namespace else ())]
    found: dict[str, None] = {}
    for binding, where in bindings:
        reference = binding["roleRef"]
        resource, home = (ROLES, where) if reference["kind"] == "Role" else (CLUSTER_ROLES, "")
        if _subject(binding, user, where) is None:
            continue
        if none_known or objects.get(resource, home, reference["name"]) is None:
            kind = reference["kind"].lower()
            found[f'{kind}.rbac.authorization.k8s.io "{reference["name"]}" not found'] = None
    return list(found)


def grants(objects: Objects, user: User, namespace: str) -> Iterator[Grant]:
    """The rules of a user in a namespace ("": in the cluster as a whole), cluster-wide ones first."""
    for binding in objects.objects(CLUSTER_ROLE_BINDINGS):
        subject = _subject(binding, user, "")
        if subject is not None:
            yield from _granted(objects, binding, subject, "ClusterRoleBinding")
    for binding in objects.objects(ROLE_BINDINGS, namespace) if namespace else ():
        subject = _subject(binding, user, namespace)
        if subject is not None:
            yield from _granted(objects, binding, subject, "RoleBinding")


def _granted(objects: Objects, binding: Obj, subject: Obj, kind: str) -> Iterator[Grant]:
    namespace, name = binding["metadata"].get("namespace", ""), binding["metadata"]["name"]
    reference = binding["roleRef"]
    shown = f"{name}/{namespace}" if namespace else name
    who = f"{subject['name']}/{subject['namespace']}" if subject["kind"] == "ServiceAccount" else subject["name"]
    reason = (
        f'RBAC: allowed by {kind} "{shown}" of {reference["kind"]} "{reference["name"]}" to {subject["kind"]} "{who}"'
    )
    for rule in role_rules(objects, reference, namespace):
        yield Grant(rule, reason)


def role_rules(objects: Objects, reference: Mapping[str, str], namespace: str) -> Sequence[Rule]:
    """The rules behind a roleRef; none for a missing role. Aggregated roles collect those of others."""
    if reference["kind"] == "Role":
        role = objects.get(ROLES, namespace, reference["name"])
        return (role or {}).get("rules") or ()
    role = objects.get(CLUSTER_ROLES, "", reference["name"])
    if role is None:
        return ()
    selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    collected = [
        rule
        for other in (objects.objects(CLUSTER_ROLES) if selectors else ())
        if other is not role and any(_selects(each, other["metadata"].get("labels") or {}) for each in selectors)
        for rule in other.get("rules") or ()
    ]
    return [*(role.get("rules") or ()), *collected]


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items())


def _subject(binding: Obj, user: User, namespace: str) -> Obj | None:
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        if kind == "User" and name == user.name:
            return subject  # type: ignore[no-any-return]
        if kind == "Group" and name in user.groups:
            return subject  # type: ignore[no-any-return]
        home = subject.get("namespace") or namespace
        if kind == "ServiceAccount" and user.name == f"system:serviceaccount:{home}:{name}":
            return {**subject, "namespace": home}
    return None


def allows(rule: Rule, wanted: Attributes) -> bool:
    """True if a rule covers the wanted action."""
    if not _covers(rule.get("verbs"), wanted.verb):
        return False
    if wanted.path:
        return any(_path_covers(each, wanted.path) for each in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames") or ()
    return (
        _covers(rule.get("apiGroups"), wanted.group)
        and _resource_covers(rule.get("resources") or (), wanted)
        and (not names or wanted.name in names)
    )


def _covers(given: Sequence[str] | None, wanted: str) -> bool:
    return given is not None and ("*" in given or wanted in given)


def _resource_covers(given: Sequence[str], wanted: Attributes) -> bool:
    if "*" in given or wanted.full_resource in given:
        return True
    return bool(wanted.subresource) and f"*/{wanted.subresource}" in given


def _path_covers(given: str, path: str) -> bool:
    return given in {"*", path} or (given.endswith("*") and path.startswith(given[:-1].rstrip("*")))


def uncovered(objects: Objects, user: User, namespace: str, rules: Sequence[Rule]) -> list[Rule]:
    """The rules beyond those of a user: the user may not grant them to others."""
    if MASTERS in user.groups:
        return []
    held = [grant.rule for grant in grants(objects, user, namespace)]
    return [rule for rule in rules if not all(_held(each, held) for each in _single(rule))]


def _held(wanted: Attributes, held: Sequence[Rule]) -> bool:
    return any(allows(rule, wanted) for rule in held)


def _single(rule: Rule) -> Iterator[Attributes]:
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield Attributes(verb, path=path)
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                name, _, subresource = resource.partition("/")
                for each in rule.get("resourceNames") or ("",):
                    yield Attributes(verb, group, name, subresource, name=each)
