"""What the server refuses beyond the recordings: code, causes and messages as the sources of Kubernetes 1.36 say."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.errors import StatusError
from apiserver.requests import Request, Response
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

Obj = dict[str, Any]
SPACE = "team"
POD: Obj = {"containers": [{"name": "main", "image": "app:1"}]}
NO_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
NO_PERCENT = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for "
    "validation is '[0-9]+%')"
)
NODE_AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
NO_KEY = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or "
    "'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
NOT_SELECTED = "Invalid value: {}: `selector` does not match template `labels`"
CASES: list[tuple[str, Obj, list[str]]] = [  # resource, what differs from a good object, field and text of each cause
    ("pods", {"metadata": {"finalizers": ["mine"]}}, [
        'metadata.finalizers[0] Invalid value: "mine": name is neither a standard finalizer name nor is it fully '
        "qualified"
    ]),
    ("pods", {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": ""}]}}, [
        'metadata.ownerReferences.uid Invalid value: "": uid must not be empty'
    ]),
    ("pods", {"spec": {"containers": [{"name": "A_", "image": "x"}]}}, [
        f'spec.containers[0].name Invalid value: "A_": {NO_LABEL}'
    ]),
    ("pods", {"spec": {"containers": [{"name": "a", "image": "x", "imagePullPolicy": "Now"}]}}, [
        'spec.containers[0].imagePullPolicy Unsupported value: "Now": supported values: "Always", "IfNotPresent", '
        '"Never"'
    ]),
    ("pods", {"spec": {"containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 70000}]}]}}, [
        "spec.containers[0].ports[0].containerPort Invalid value: 70000: must be between 1 and 65535, inclusive"
    ]),
    ("pods", {"spec": {"containers": [{"name": "a", "image": "x", "env": [{"name": "A=", "value": "1"}]}]}}, [
        'spec.containers[0].env[0].name Invalid value: "A=": a valid environment variable name must consist only of '
        "printable ASCII characters other than '='"
    ]),
    ("pods", {"spec": {"containers": [
        {"name": "a", "image": "x", "volumeMounts": [{"name": "none", "mountPath": "/x"}]}
    ]}}, ['spec.containers[0].volumeMounts[0].name Not found: "none"']),
    ("pods", {"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}}, [
        'spec.volumes[1].name Duplicate value: "v"'
    ]),
    ("pods", {"spec": {"dnsPolicy": "Any"}}, [
        'spec.dnsPolicy Unsupported value: "Any": supported values: "ClusterFirst", "ClusterFirstWithHostNet", '
        '"Default", "None"'
    ]),
    ("pods", {"spec": {"activeDeadlineSeconds": 0}}, [
        "spec.activeDeadlineSeconds Invalid value: 0: must be between 1 and 2147483647, inclusive"
    ]),
    ("pods", {"spec": {"tolerations": [{"key": "a", "operator": "Like"}]}}, [
        'spec.tolerations[0].operator Unsupported value: "Like": supported values: "Equal", "Exists"'
    ]),
    ("pods", {"spec": {"tolerations": [{"operator": "Equal", "value": "x"}]}}, [
        'spec.tolerations[0].operator Invalid value: "Equal": operator must be Exists when `key` is empty, which means '
        '"match all values and all keys"'
    ]),
    ("pods", {"spec": {"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "b", "operator": "Is", "values": ["c"]}]}
        ]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0, "preference": {}}],
    }}}}, [
        f"{NODE_AFFINITY}[0].matchExpressions[0].values Required value: must be specified when `operator` is 'In' or "
        "'NotIn'",
        f'{NODE_AFFINITY}[0].matchExpressions[1].operator Invalid value: "Is": not a valid selector operator',
        "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight Invalid value: 0: must "
        "be in the range 1-100",
    ]),
    ("configmaps", {"data": {"a b": "c"}}, [f'data[a b] Invalid value: "a b": {NO_KEY}']),
    ("deployments.apps", {"spec": {"selector": None}}, [
        "spec.selector Required value",
        "spec.template.metadata.labels " + NOT_SELECTED.format('{"app":"x"}'),
    ]),
    ("deployments.apps", {"spec": {"selector": {}}}, [
        "spec.selector Invalid value: {}: empty selector is invalid for deployment"
    ]),
    ("deployments.apps", {"spec": {"replicas": -1, "minReadySeconds": 600}}, [
        "spec.replicas Invalid value: -1: must be greater than or equal to 0",
        "spec.progressDeadlineSeconds Invalid value: 600: must be greater than minReadySeconds",
    ]),
    ("deployments.apps", {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}}, [
        "spec.strategy.rollingUpdate Forbidden: may not be specified when strategy `type` is 'Recreate'"
    ]),
    ("deployments.apps", {"spec": {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}}, [
        "spec.strategy.rollingUpdate.maxUnavailable Invalid value: 0: may not be 0 when `maxSurge` is 0"
    ]),
    ("deployments.apps", {"spec": {"strategy": {"rollingUpdate": {"maxSurge": "half", "maxUnavailable": "101%"}}}}, [
        f'spec.strategy.rollingUpdate.maxSurge Invalid value: "half": {NO_PERCENT}',
        'spec.strategy.rollingUpdate.maxUnavailable Invalid value: "101%": must not be greater than 100%',
    ]),
    ("deployments.apps", {"spec": {"template": {"spec": {"restartPolicy": "Never"}}}}, [
        'spec.template.spec.restartPolicy Unsupported value: "Never": supported values: "Always"'
    ]),
    ("replicasets.apps", {"spec": {"selector": {"matchLabels": {"app": "y"}}}}, [
        "spec.template.metadata.labels " + NOT_SELECTED.format('{"app":"x"}')
    ]),
    ("statefulsets.apps", {"metadata": {"name": "a.b"}}, [f'metadata.name Invalid value: "a.b": {NO_LABEL}']),
    ("statefulsets.apps", {"spec": {"podManagementPolicy": "Any", "updateStrategy": {"type": "Any"}}}, [
        "spec.podManagementPolicy Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'",
        "spec.updateStrategy Invalid value: {\"type\":\"Any\"}: must be 'RollingUpdate' or 'OnDelete'",
    ]),
    ("poddisruptionbudgets.policy", {"spec": {"minAvailable": 1, "maxUnavailable": "120%"}}, [
        'spec Invalid value: {"maxUnavailable":"120%","minAvailable":1}: minAvailable and maxUnavailable are mutually '
        "exclusive",
        'spec.maxUnavailable Invalid value: "120%": must not be greater than 100%',
    ]),
]  # fmt: skip
CHANGES: list[tuple[str, Obj, list[str]]] = [  # a merge patch of a good object, and its causes
    ("deployments.apps", {"spec": {"selector": {"matchLabels": {"app": "y"}}}}, [
        "spec.template.metadata.labels " + NOT_SELECTED.format('{"app":"x"}'),
        'spec.selector Invalid value: {"matchLabels":{"app":"y"}}: field is immutable',
    ]),
    ("statefulsets.apps", {"spec": {"serviceName": "other"}}, [
        "spec Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
        "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are "
        "forbidden"
    ]),
    ("configmaps", {"metadata": {"finalizers": ["mine"]}}, [
        'metadata.finalizers[0] Invalid value: "mine": name is neither a standard finalizer name nor is it fully '
        "qualified"
    ]),
]  # fmt: skip


def good(resource: str) -> Obj:
    """An object that the server takes."""
    metadata: Obj = {"name": "x", "namespace": SPACE}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": POD}
    workload: Obj = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    bodies: dict[str, tuple[str, str, Obj]] = {
        "pods": ("v1", "Pod", {"spec": POD}),
        "configmaps": ("v1", "ConfigMap", {"data": {}}),
        "deployments.apps": ("apps/v1", "Deployment", {"spec": workload}),
        "replicasets.apps": ("apps/v1", "ReplicaSet", {"spec": workload}),
        "statefulsets.apps": ("apps/v1", "StatefulSet", {"spec": workload | {"serviceName": "x"}}),
        "poddisruptionbudgets.policy": ("policy/v1", "PodDisruptionBudget", {"spec": {}}),
    }
    version, kind, body = bodies[resource]
    return {"apiVersion": version, "kind": kind, "metadata": metadata} | body


def changed(obj: Obj, change: Obj) -> Obj:
    """An object with what differs."""
    made = dict(obj)
    for name, value in change.items():
        made[name] = changed(made.get(name) or {}, value) if isinstance(value, dict) and value else value
    return made


def causes(error: StatusError) -> list[str]:
    """Field and text of the causes, each once."""
    found = error.body["details"]["causes"]
    return list(dict.fromkeys(f"{each['field']} {each['message']}" for each in found))


@pytest.fixture(scope="module")
def server() -> Server:
    """A cluster with a namespace; nothing that is refused stays there."""
    made = cluster(Timeline(datetime(2026, 1, 1, tzinfo=UTC)), random.Random(1))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}}
    made.client(ADMIN, "test").create("namespaces", namespace)
    made.timeline.run_for(1)
    return made


@pytest.mark.parametrize(
    ("resource", "change", "expected"), CASES, ids=[f"{at}-{row[0]}" for at, row in enumerate(CASES)]
)
def test_a_new_object_is_refused_with_its_causes(
    server: Server, resource: str, change: Obj, expected: list[str]
) -> None:
    """422 Invalid, one cause for each mistake."""
    with pytest.raises(StatusError) as refused:
        server.client(ADMIN, "test").create(resource, changed(good(resource), change))
    assert (refused.value.code, refused.value.body["reason"], causes(refused.value)) == (422, "Invalid", expected)


@pytest.mark.parametrize(("resource", "change", "expected"), CHANGES, ids=[row[0] for row in CHANGES])
def test_a_change_is_refused_with_its_causes(server: Server, resource: str, change: Obj, expected: list[str]) -> None:
    """The object that is stored was good."""
    client = server.client(ADMIN, "test")
    client.create(resource, good(resource))
    with pytest.raises(StatusError) as refused:
        client.patch(resource, SPACE, "x", change)
    client.delete(resource, SPACE, "x", {"propagationPolicy": "Background"})
    assert (refused.value.code, causes(refused.value)) == (422, expected)


def test_an_object_that_is_deleted_takes_no_new_finalizer(server: Server) -> None:
    """Those that it has may go."""
    client = server.client(ADMIN, "test")
    client.create("configmaps", changed(good("configmaps"), {"metadata": {"finalizers": ["a.example/b"]}}))
    client.delete("configmaps", SPACE, "x")
    with pytest.raises(StatusError) as refused:
        client.patch("configmaps", SPACE, "x", {"metadata": {"finalizers": ["a.example/b", "a.example/c"]}})
    assert causes(refused.value) == [
        "metadata.finalizers Forbidden: no new finalizers can be added if the object is being deleted, found new "
        'finalizers []string{"a.example/c"}'
    ]
    client.patch("configmaps", SPACE, "x", {"metadata": {"finalizers": None}})
    assert client.get("configmaps", SPACE, "x") is None


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/api/v1/pods/x", 404),
        ("PATCH", "/apis/apps/v1/deployments/x", 404),
        ("POST", "/api/v1/pods", 405),
        ("DELETE", "/api/v1/pods", 405),
        ("GET", "/api/v1/pods", 200),
    ],
)
def test_a_namespaced_object_is_not_served_without_its_namespace(
    server: Server, method: str, path: str, code: int
) -> None:
    """All namespaces together are listed and watched only."""
    answer = server.handle(Request(method, path, {}, {}, {} if method != "GET" else None, ADMIN))
    assert isinstance(answer, Response)
    assert answer.status == code
    if code == 404:
        assert answer.plain()["message"] == "the server could not find the requested resource"


def test_a_review_asks_one_thing_of_somebody(server: Server) -> None:
    """Neither and both are refused."""
    client = server.client(ADMIN, "test")
    resource, other = {"verb": "get", "resource": "pods"}, {"verb": "get", "path": "/x"}
    for kind, spec, expected in (
        ("selfsubjectaccessreviews", {}, ["spec.resourceAttributes Invalid value: null: exactly one of "]),
        (
            "subjectaccessreviews",
            {"resourceAttributes": resource, "nonResourceAttributes": other},
            ['spec.nonResourceAttributes Invalid value: {"Path":"/x","Verb":"get"}: cannot be ', "spec.user Invalid"],
        ),
    ):
        with pytest.raises(StatusError) as refused:
            client.create(f"{kind}.authorization.k8s.io", {"metadata": {}, "spec": spec})
        found = causes(refused.value)
        assert len(found) == len(expected)
        assert all(text.startswith(begin) for text, begin in zip(found, expected, strict=True))


def test_a_pod_needs_its_service_account(server: Server) -> None:
    """Only the one called default may come later."""
    pod = changed(good("pods"), {"spec": {"serviceAccountName": "none"}})
    with pytest.raises(StatusError) as refused:
        server.client(ADMIN, "test").create("pods", pod)
    assert refused.value.code == 403
    assert refused.value.message == (
        f'pods "x" is forbidden: error looking up service account {SPACE}/none: serviceaccount "none" not found'
    )
