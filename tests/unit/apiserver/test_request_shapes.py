"""Requests of an unusual shape get the answers of a real server, and nothing else happens."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.cluster import cluster
from apiserver.requests import Request, Response
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

Obj = dict[str, Any]
PODS, MAPS, JOBS = (
    "/api/v1/namespaces/lab/pods",
    "/api/v1/namespaces/lab/configmaps",
    "/apis/batch/v1/namespaces/lab/jobs",
)
DEPLOYMENTS = "/apis/apps/v1/namespaces/lab/deployments"
WIDGETS = "/apis/lab.example.com/v1/namespaces/lab/widgets"
CONTAINERS = [{"name": "main", "image": "app:1"}]
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": CONTAINERS}}
NEVER = {"restartPolicy": "Never", "containers": CONTAINERS}
SELECTOR = {"matchLabels": {"app": "a"}}
SECRET = {"kind": "Secret", "apiVersion": "v1"}
REPLACED = [{"op": "replace", "path": "/spec/replicas", "value": 1}]
OTHER_UID = "11111111-2222-4333-8444-555555555555"
OBJECTS: tuple[tuple[str, Obj], ...] = (
    (PODS, {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": CONTAINERS}}),
    (MAPS, {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}),
    (JOBS, {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": {"spec": NEVER}}}),
    (DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": {"replicas": 0, "selector": SELECTOR, "template": TEMPLATE}}),
)  # fmt: skip
DEFINITION: Obj = {
    "metadata": {"name": "widgets.lab.example.com"},
    "spec": {
        "group": "lab.example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}


@pytest.fixture
def server() -> Server:
    """A cluster with one object of some kinds."""
    made = cluster(Timeline(datetime(2026, 1, 1, tzinfo=UTC)), random.Random(1))
    made.client(ADMIN, "t").create("namespaces", {"metadata": {"name": "lab"}})
    made.timeline.run_for(1.0)
    for path, obj in OBJECTS:
        assert ask(made, "POST", path, body=obj).status == 201
    assert ask(made, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body=DEFINITION).status == 201
    made.timeline.run_for(5.0)
    assert ask(made, "POST", WIDGETS, body={"metadata": {"name": "w"}, "spec": {"size": 1}}).status == 201
    return made


def ask(server: Server, method: str, path: str, query: str = "", kind: str = "json", body: Any = None) -> Response:
    """Send a request as the administrator; a body that is no text is sent as JSON."""
    media = {"merge": "merge-patch+json", "patch": "json-patch+json", "apply": "apply-patch+yaml"}.get(kind, kind)
    pairs = dict(pair.partition("=")[::2] for pair in query.split("&") if pair)
    sent = body if isinstance(body, (str, type(None))) else json.dumps(body)
    found = server.handle(Request(method, path, pairs, {"content-type": f"application/{media}"}, sent, user=ADMIN))
    assert isinstance(found, Response), f"{method} {path} opened a stream"
    return found


def is_there(server: Server, name: str = "p", resource: str = "pods") -> bool:
    """Whether an object is stored."""
    return server.store.get(resource, "lab", name) is not None


def test_a_delete_with_a_body_ignores_its_query(server: Server) -> None:
    """A dryRun in the query alone is a dry run; beside any DeleteOptions it is none, unless the body says so too."""
    assert ask(server, "DELETE", f"{PODS}/p", "dryRun=All").status == 200
    assert is_there(server)
    dry = {"kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]}
    assert ask(server, "DELETE", f"{PODS}/p", "dryRun=All", body=dry).status == 200
    assert is_there(server)
    answer = ask(server, "DELETE", f"{PODS}/p", "dryRun=All", body={"gracePeriodSeconds": 0})
    assert answer.status == 200
    assert not is_there(server)


def test_a_collection_is_deleted_as_its_body_says(server: Server) -> None:
    """As one object: the query counts only without a body."""
    assert ask(server, "DELETE", MAPS, "dryRun=All").status == 200
    assert is_there(server, "c", "configmaps")
    assert ask(server, "DELETE", MAPS, "dryRun=All", body={"kind": "DeleteOptions"}).status == 200
    assert not is_there(server, "c", "configmaps")


def test_a_uid_does_not_guard_the_status_of_a_custom_resource(server: Server) -> None:
    """A patch of /status with another uid is written; one of the object, of a built-in kind or by PUT is refused."""
    wrong = {"metadata": {"uid": OTHER_UID}, "status": {"phase": "written"}}
    assert ask(server, "PATCH", f"{WIDGETS}/w/status", kind="merge", body=wrong).status == 200
    stored = server.store.get("widgets.lab.example.com", "lab", "w")
    assert stored is not None
    assert stored["status"] == {"phase": "written"}
    assert stored["metadata"]["uid"] != OTHER_UID
    assert ask(server, "PATCH", f"{WIDGETS}/w", kind="merge", body=wrong).status == 422
    assert ask(server, "PATCH", f"{PODS}/p/status", kind="merge", body=wrong).status == 422
    whole = stored | {"metadata": stored["metadata"] | {"uid": OTHER_UID}}
    assert ask(server, "PUT", f"{WIDGETS}/w/status", body=whole).status == 409


def test_the_status_of_a_custom_resource_keeps_its_metadata(server: Server) -> None:
    """Labels and annotations that come with a status are not written; a stale resourceVersion is refused."""
    labelled = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "status": {"phase": "x"}}
    assert ask(server, "PATCH", f"{WIDGETS}/w/status", kind="merge", body=labelled).status == 200
    stored = server.store.get("widgets.lab.example.com", "lab", "w")
    assert stored is not None
    assert not {"labels", "annotations"} & stored["metadata"].keys()
    stale = {"metadata": {"resourceVersion": "1"}, "status": {"phase": "y"}}
    assert ask(server, "PATCH", f"{WIDGETS}/w/status", kind="merge", body=stale).status == 409


INDEXED: Obj = {"completionMode": "Indexed", "completions": 2}


def job_of(**spec: Any) -> Obj:
    """A suspended Job of pods that do not start again."""
    return {"metadata": {"name": "k"}, "spec": {"suspend": True, "template": {"spec": NEVER}, **spec}}


REFUSED: list[tuple[str, str, str, str, Any, int, str]] = [
    ("GET", PODS, "limit=x", "json", None, 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
    ("GET", PODS, "limit=9223372036854775808", "json", None, 400, "value out of range"),
    ("GET", PODS, "watch=1&timeoutSeconds=1.5", "json", None, 400, 'parsing "1.5": invalid syntax'),
    ("GET", PODS, "watch=perhaps&resourceVersion=x", "json", None, 500, 'parsing "x": invalid syntax'),
    ("GET", PODS, "resourceVersion=-3", "json", None, 400, "invalid resource version"),
    ("GET", f"{PODS}/p", "resourceVersion=x", "json", None, 500, 'parsing "x": invalid syntax'),
    ("GET", PODS, "resourceVersion=1&resourceVersionMatch=exact", "json", None, 422, 'Unsupported value: "exact"'),
    ("GET", PODS, "labelSelector=a in (b", "json", None, 400, "unable to parse requirement"),
    ("GET", PODS, "labelSelector=!", "json", None, 400, "found '', expected: identifier"),
    ("GET", PODS, "labelSelector=a,,", "json", None, 400, "found ',', expected: identifier after ','"),
    ("GET", PODS, "labelSelector=a,", "json", None, 400, "found '', expected: identifier after ','"),
    ("GET", PODS, "labelSelector==", "json", None, 400, "found '=', expected: !, identifier, or 'end of string'"),
    ("GET", PODS, "labelSelector=!a=b", "json", None, 400, "found '=', expected: ',' or 'end of string'"),
    ("GET", PODS, "labelSelector=a=(", "json", None, 400, "found '(', expected: identifier"),
    ("GET", PODS, "labelSelector=a in b", "json", None, 400, "found 'b' expected: '('"),
    ("GET", PODS, "labelSelector=/a", "json", None, 400, '<nil>: Invalid value: "/a": prefix part must be non-empty'),
    ("GET", PODS, "labelSelector=a in (b,-c)", "json", None, 400, 'values[0][a]: Invalid value: "-c"'),
    ("GET", PODS, "labelSelector=a<one", "json", None, 400, "the value must be an integer"),
    ("PATCH", f"{MAPS}/c", "", "merge", "[1]", 400, "cannot unmarshal array"),
    ("PATCH", f"{MAPS}/c", "", "merge", '"text"', 400, "cannot unmarshal string"),
    ("PATCH", f"{MAPS}/c", "", "merge", "null", 400, "Invalid JSON Patch"),
    ("PATCH", f"{MAPS}/c", "", "merge", '{"data":', 400, "error decoding patch: unexpected end of JSON input"),
    ("PATCH", f"{MAPS}/c", "", "merge", "{data}", 400, "looking for beginning of object key string"),
    ("PATCH", f"{MAPS}/c", "", "patch", "{}", 400, "cannot unmarshal object into Go value of type []handlers"),
    ("PATCH", f"{MAPS}/c", "", "patch", [{"op": "add", "path": "/data/b", "value": "1"}] * 10_001, 413, "got 10001"),
    ("PATCH", f"{MAPS}/c", "", "merge", {"metadata": {"name": "e"}}, 400, "does not match the name on the URL"),
    ("PATCH", f"{MAPS}/c", "", "merge", {"metadata": {"namespace": "e"}}, 400, "does not match the namespace"),
    ("PATCH", f"{MAPS}/c", "fieldValidation=None", "merge", {}, 422, 'supported values: "", "Ignore"'),
    ("PATCH", f"{MAPS}/c", "fieldValidation=Strict", "merge", {"dat": {}}, 422, 'unknown field "dat"'),
    ("PATCH", f"{MAPS}/c", "", "merge", {"data": {"a": 1}}, 422, "into Go struct field ConfigMap.data of type string"),
    ("POST", MAPS, "fieldValidation=Strict", "json", '{"data":{},"data":{}}', 400, 'duplicate field "data"'),
    ("POST", MAPS, "", "json", "[]", 400, "cannot unmarshal array into Go value of type struct"),
    ("POST", MAPS, "", "json", SECRET, 400, "converting (v1.Secret) to (core.ConfigMap)"),
    ("POST", MAPS, "", "json", {"kind": "Lab", "apiVersion": "v1"}, 400, 'no kind "Lab" is registered'),
    ("POST", MAPS, "", "yaml", "metadata: {name: n}\n", 400, "cannot unmarshal bool into Go struct field ObjectMeta"),
    ("POST", f"{MAPS}/c", "", "json", {}, 405, "does not allow this method"),
    ("POST", f"{PODS}/p/eviction", "", "json", None, 400, "unexpected end of JSON input (<empty>)"),
    ("PATCH", f"{JOBS}/j", "", "merge", {"spec": {"parallelism": -1}}, 422, "spec.parallelism: Invalid value: -1"),
    ("PATCH", f"{JOBS}/j", "", "merge", {"spec": {"backoffLimit": -2}}, 422, "spec.backoffLimit: Invalid value: -2"),
    ("PATCH", f"{JOBS}/j", "", "merge", {"spec": {"parallelism": 2**31}}, 422, "spec.parallelism of type int32"),
    ("PATCH", f"{JOBS}/j", "", "merge", {"spec": {"suspend": "no"}}, 422, "JobSpec.spec.suspend of type bool"),
    ("POST", JOBS, "", "json", job_of(completionMode="Odd"), 422, 'supported values: "NonIndexed", "Indexed"'),
    ("POST", JOBS, "", "json", job_of(completionMode="Indexed", parallelism=2), 422, "when completion mode is Indexed"),
    ("POST", JOBS, "", "json", job_of(**INDEXED, parallelism=100_001), 422, "must be less than or equal to 100000"),
    ("POST", JOBS, "", "json", job_of(backoffLimitPerIndex=1), 422, "requires indexed completion mode"),
    ("POST", JOBS, "", "json", job_of(**INDEXED, maxFailedIndexes=1), 422, "when maxFailedIndexes is specified"),
    ("POST", JOBS, "", "json", job_of(podReplacementPolicy="No"), 422, '"Failed", "TerminatingOrFailed"'),
    ("POST", JOBS, "", "json", job_of(template={"spec": {"restartPolicy": "No"}}), 422, '"OnFailure", "Never"'),
    ("DELETE", f"{JOBS}/j", "", "json", {"kind": "Pod", "apiVersion": "v1"}, 400, 'no kind "Pod" is registered'),
    ("DELETE", f"{JOBS}/j", "", "json", "{", 400, "unexpected end of JSON input"),
    ("DELETE", f"{JOBS}/j", "", "json", {"propagationPolicy": "Never"}, 422, 'Unsupported value: "Never"'),
    ("DELETE", f"{JOBS}/j", "gracePeriodSeconds=soon", "json", None, 400, 'parsing "soon": invalid syntax'),
    ("DELETE", f"{JOBS}/j", "", "json", {"gracePeriodSeconds": "5"}, 400, "gracePeriodSeconds of type int64"),
    ("DELETE", f"{JOBS}/j", "dryRun=Some", "json", None, 422, 'Unsupported value: ["Some"]'),
    ("PATCH", f"{DEPLOYMENTS}/d/scale", "", "merge", {"spec": {"replicas": -1}}, 422, 'Scale.autoscaling "d"'),
    ("PATCH", f"{DEPLOYMENTS}/d/scale", "", "merge", {"metadata": {"uid": OTHER_UID}}, 409, "deployments/scale.apps"),
    ("PATCH", f"{DEPLOYMENTS}/d/scale", "", "patch", REPLACED, 422, "rejected"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "query", "kind", "body", "status", "text"), REFUSED)
def test_a_malformed_request_is_refused(
    server: Server, method: str, path: str, query: str, kind: str, body: Any, status: int, text: str
) -> None:
    """With the status and the words of a real server; no object changes."""
    version = server.store.version
    answer = ask(server, method, path, query, kind, body)
    shown = answer.plain()
    assert (answer.status, text in shown["message"]) == (status, True), shown["message"]
    assert shown["code"] == status
    assert server.store.version == version


TAKEN: list[tuple[str, str, str, str, Any]] = [
    ("GET", PODS, "limit=-1", "json", None),
    ("GET", PODS, "limit=0&watch=false", "json", None),
    ("GET", PODS, "watch=0", "json", None),
    ("PATCH", f"{JOBS}/j", "", "merge", {"spec": {"activeDeadlineSeconds": 0}}),
    ("PATCH", f"{MAPS}/c", "fieldManager=m&force=perhaps", "apply", "{apiVersion: v1, kind: ConfigMap, data: {y: ''}}"),
    ("PATCH", f"{MAPS}/c", "", "patch", []),
    ("DELETE", f"{PODS}/p", "dryRun=All&preconditions.uid=x", "json", None),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "query", "kind", "body"), TAKEN)
def test_an_unusual_request_is_taken(server: Server, method: str, path: str, query: str, kind: str, body: Any) -> None:
    """What looks wrong and is not: real servers answer 200."""
    answer = ask(server, method, path, query, kind, body)
    assert answer.status == 200, answer.plain()


def test_yaml_is_read_as_go_reads_it(server: Server) -> None:
    """Times and sexagesimal numbers stay texts, and a key that is a boolean becomes its text."""
    text = "{apiVersion: v1, kind: ConfigMap, data: {at: 2026-01-01T00:00:00Z, clock: 12:30:45, y: x}}"
    answer = ask(server, "PATCH", f"{MAPS}/c", "fieldManager=m", "apply", text)
    assert answer.status == 200, answer.plain()
    wanted = {"a": "1", "at": "2026-01-01T00:00:00Z", "clock": "12:30:45", "true": "x"}
    assert answer.plain()["data"] == wanted


def test_a_client_that_reads_no_served_form_is_refused(server: Server) -> None:
    """406 names the forms."""
    answer = server.handle(Request("GET", PODS, {}, {"accept": "text/html"}, user=ADMIN))
    assert isinstance(answer, Response)
    assert answer.status == 406
    assert "application/json" in answer.plain()["message"]


def test_a_scale_of_nothing_says_nothing(server: Server) -> None:
    """A Scale leaves out replicas at 0; an apply owns them in the Deployment, and conflicts with whoever did."""
    shown = ask(server, "GET", f"{DEPLOYMENTS}/d/scale").plain()
    assert (shown["spec"], shown["status"]) == ({}, {"replicas": 0, "selector": "app=a"})
    config = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}, "spec": {"replicas": 2}}
    path = f"{DEPLOYMENTS}/d/scale"
    refused = ask(server, "PATCH", path, "fieldManager=ours", "apply", config)
    assert (refused.status, refused.plain()["details"]["causes"][0]["field"]) == (409, ".spec.replicas")
    dry = ask(server, "PATCH", path, "fieldManager=ours&force=true&dryRun=All", "apply", config)
    assert dry.plain()["spec"] == {"replicas": 2}
    stored = server.store.get("deployments.apps", "lab", "d")
    assert stored is not None
    assert stored["spec"]["replicas"] == 0
    assert ask(server, "PATCH", path, "fieldManager=ours&force=true", "apply", config).status == 200
    stored = server.store.get("deployments.apps", "lab", "d")
    assert stored is not None
    assert stored["spec"]["replicas"] == 2
    owners = {
        (each["manager"], each["operation"], each.get("subresource", "")): each["apiVersion"]
        for each in stored["metadata"]["managedFields"]
        if "f:replicas" in each["fieldsV1"].get("f:spec", {})
    }
    assert owners == {("ours", "Apply", "scale"): "apps/v1"}


@pytest.mark.parametrize(
    ("at", "given"),
    [
        (WIDGETS, {"apiVersion": ["lab.example.com/v1"], "metadata": {"name": "v"}}),
        (WIDGETS, {"kind": {}, "metadata": {"name": "v"}}),
        (WIDGETS, {"metadata": {"name": "v", "labels": {"a": 1}}}),
        (WIDGETS, {"metadata": {"name": "v", "labels": "x"}}),
        (WIDGETS, {"metadata": {"name": "v", "annotations": [1]}}),
        (
            PODS,
            {"metadata": {"name": "q"}, "spec": {"containers": [{"name": "m", "resources": {"limits": {"x": []}}}]}},
        ),
    ],
)
def test_a_text_of_another_type_is_a_bad_request(server: Server, at: str, given: Obj) -> None:
    """Version, kind, labels and annotations of custom kinds, and a quantity: 400, and nothing is stored."""
    answer = ask(server, "POST", at, body=given)
    assert answer.status == 400, answer.plain()
