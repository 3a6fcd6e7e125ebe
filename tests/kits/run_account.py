"""The account of a run on a cluster, and what it may do: write in the namespace and on the nodes of the run alone.

The rights are those that ship (deploy/observe.yaml, deploy/act/, deploy/crds/roles.yaml), made narrower. What is in a
namespace is granted in that of the run. Of what has no namespace everything may be read, and written are only the nodes
of the run, our AdmissionCheck, and Recommendations. So the API server refuses whatever else the service might send.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from actuators.kubernetes.levers import rules_for
from autopilot.crds.names import GROUP, RECOMMENDATIONS
from autopilot.readiness.line import READ
from autopilot.readiness.rights import RIGHTS
from tests.kits.real_cluster import CORE, Obj, RealCluster

RBAC = "rbac.authorization.k8s.io"
WITHOUT_NAMESPACE = {
    "nodes",
    "namespaces",
    "priorityclasses",
    "clusterqueues",
    "cohorts",
    "resourceflavors",
    "topologies",
    "admissionchecks",
    "admissionchecks/status",
    "queues",
    "resourceslices",
    "deviceclasses",
    "clusterpolicies",
}
"""Resources of the tables of rights that have no namespace."""
READING = {"get", *READ}
LIFETIME_S = 7200


def make_account(cluster: RealCluster, folder: Path, kinds: Iterable[str]) -> Path:
    """Create the account with the rights of these kinds of instructions; a kubeconfig with its token."""
    kinds, name = tuple(kinds), cluster.space
    cluster.create(f"{CORE}/namespaces/{name}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount"}, name)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": name}
    for kind, rules in (("Role", _inside(kinds)), ("ClusterRole", _outside(kinds, (*cluster.nodes, cluster.cut)))):
        root = f"/apis/{RBAC}/v1" + (f"/namespaces/{name}" if kind == "Role" else "")
        version = {"apiVersion": f"{RBAC}/v1"}
        cluster.create(f"{root}/{kind.lower()}s", {**version, "kind": kind, "rules": list(rules)}, name)
        binding: Obj = {**version, "kind": f"{kind}Binding", "subjects": [subject]}
        binding["roleRef"] = {"apiGroup": RBAC, "kind": kind, "name": name}
        cluster.create(f"{root}/{kind.lower()}bindings", binding, name)
    asks = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": LIFETIME_S}}
    answer = cluster.api.post(f"{CORE}/namespaces/{name}/serviceaccounts/{name}/token", asks)
    assert answer.ok, f"the account of the run gets no token: {answer.message}"
    path = folder / "run.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(_with_token(cluster.kubeconfig, answer.body["status"]["token"]), "utf-8")
    return path


def _inside(kinds: tuple[str, ...]) -> Iterator[Obj]:
    """Rules for the namespace of the run."""
    for right in RIGHTS:
        if right.verbs == READ and right.resource not in WITHOUT_NAMESPACE:
            yield _rule(right.group, right.resource, READ)
    for rule in rules_for(kinds):
        if rule.resource not in WITHOUT_NAMESPACE:
            yield _rule(rule.group, rule.resource, rule.verbs, rule.names)


def _outside(kinds: tuple[str, ...], nodes: tuple[str, ...]) -> Iterator[Obj]:
    """Rules for what has no namespace: writes name their objects."""
    for right in RIGHTS:
        if right.verbs == READ and right.resource in WITHOUT_NAMESPACE:
            yield _rule(right.group, right.resource, READ)
    for rule in rules_for(kinds):
        if rule.resource not in WITHOUT_NAMESPACE:
            continue
        reads = tuple(verb for verb in rule.verbs if verb in READING)
        verbs, names = tuple(verb for verb in rule.verbs if verb not in READING), rule.names
        if reads:
            yield _rule(rule.group, rule.resource, reads, names)
        if verbs:
            assert names or rule.resource == "nodes", f"a write on any of {rule.resource} is not granted here"
            yield _rule(rule.group, rule.resource, verbs, names or nodes)
    if "recut" in kinds:
        yield _rule("", "pods", ("list",))  # those on the node that is cut may be of any namespace
    yield _rule(GROUP, RECOMMENDATIONS, ("get", *READ, "create", "patch", "delete"))
    yield _rule(GROUP, f"{RECOMMENDATIONS}/status", ("patch",))


def _rule(group: str, resource: str, verbs: tuple[str, ...], names: tuple[str, ...] = ()) -> Obj:
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": [resource], **only, "verbs": list(verbs)}


def _with_token(kubeconfig: Path, token: str) -> str:
    """A kubeconfig for the cluster of another one, with this token."""
    content: dict[str, Any] = yaml.safe_load(kubeconfig.read_text("utf-8"))
    context = next(each["context"] for each in content["contexts"] if each["name"] == content["current-context"])
    place = dict(next(each["cluster"] for each in content["clusters"] if each["name"] == context["cluster"]))
    if authority := place.get("certificate-authority"):
        place["certificate-authority"] = str((kubeconfig.parent / authority).resolve())
    name = "e2e"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": place}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )
