"""Custom resources: from the definition to the objects, and back to nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from apiserver.crd.rules import Rules
from apiserver.crd.shape import fill_defaults, prune
from apiserver.crd.validation import validate
from tests.kits.apiserver_kit import Asker, small_cluster

Obj = dict[str, Any]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PLANS = "/apis/fleet.example.org/v1/namespaces/default/plans"
SPEC: Obj = {
    "type": "object",
    "required": ["mode"],
    "properties": {
        "mode": {"type": "string", "enum": ["Fast", "Safe"]},
        "width": {"type": "integer", "minimum": 1, "default": 2},
        "share": {"type": "number"},
        "until": {"type": "string", "format": "date-time"},
        "note": {"type": "string", "maxLength": 5, "nullable": True},
        "steps": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "left": {"type": "integer", "default": 0}},
            },
        },
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
    },
    "x-kubernetes-validations": [
        {"rule": "self.mode != 'Safe' || self.width <= 4", "message": "a safe plan is narrow"},
        {"rule": "self.mode == oldSelf.mode", "message": "mode is immutable"},
    ],
}
SCHEMA: Obj = {
    "type": "object",
    "properties": {
        "spec": SPEC,
        "status": {"type": "object", "properties": {"seen": {"type": "integer"}, "width": {"type": "integer"}}},
    },
}


def definition(schema: Obj = SCHEMA, **more: Any) -> Obj:
    """A definition of plans.fleet.example.org."""
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    version |= {
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.width", "statusReplicasPath": ".status.width"},
        }
    }
    version |= more
    spec = {
        "group": "fleet.example.org",
        "scope": "Namespaced",
        "names": {"plural": "plans", "kind": "Plan"},
        "versions": [version],
    }
    return {"metadata": {"name": "plans.fleet.example.org"}, "spec": spec}


def plan(name: str = "p", **spec: Any) -> Obj:
    """A plan."""
    return {
        "apiVersion": "fleet.example.org/v1",
        "kind": "Plan",
        "metadata": {"name": name},
        "spec": {"mode": "Fast"} | spec,
    }


@pytest.fixture
def ask() -> Asker:
    """A server that serves plans."""
    asker = Asker(small_cluster())
    asker("POST", CRDS, definition())
    asker.server.timeline.run_for(1.0)
    return asker


def test_a_definition_is_served_once_its_names_are_accepted() -> None:
    """Before that its paths do not exist; then it is established."""
    ask = Asker(small_cluster())
    created = ask("POST", CRDS, definition())
    assert created["status"] == {
        "conditions": None,
        "acceptedNames": {"plural": "", "kind": ""},
        "storedVersions": ["v1"],
    }
    assert ask.refused(404, "GET", PLANS) == "404 page not found\n"
    ask.server.timeline.run_for(0.5)
    assert ask("GET", PLANS)["items"] == []
    conditions = ask("GET", f"{CRDS}/plans.fleet.example.org")["status"]["conditions"]
    assert {each["type"]: each["status"] for each in conditions} == {"NamesAccepted": "True", "Established": "True"}


def test_a_second_definition_cannot_take_the_same_names() -> None:
    """It stays unserved and says which name is taken."""
    ask = Asker(small_cluster())
    ask("POST", CRDS, definition())
    ask.server.timeline.run_for(1.0)
    other = definition()
    other["metadata"]["name"] = "schemes.fleet.example.org"
    other["spec"]["names"] = {"plural": "schemes", "kind": "Plan"}
    ask("POST", CRDS, other)
    ask.server.timeline.run_for(1.0)
    conditions = ask("GET", f"{CRDS}/schemes.fleet.example.org")["status"]["conditions"]
    assert (conditions[0]["reason"], conditions[0]["message"]) == ("ListKindConflict", '"PlanList" is already in use')
    assert ask("GET", f"{CRDS}/schemes.fleet.example.org")["status"]["acceptedNames"] == {
        "plural": "schemes",
        "kind": "",
    }


def test_a_new_kind_warms_up() -> None:
    """404, then 429 while its cache is filled, then it is read; a create waits two seconds; discovery comes last."""
    ask = Asker(small_cluster())
    ask("POST", CRDS, definition())
    timeline = ask.server.timeline
    ask.refused(404, "GET", PLANS)
    timeline.run_for(0.015)
    refused = ask.response("GET", PLANS)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    timeline.run_for(0.015)
    assert ask("GET", PLANS)["items"] == []
    group = PLANS.partition("/namespaces")[0]
    ask.refused(404, "GET", group)
    timeline.run_for(0.015)
    assert ask("GET", group)["resources"]
    assert ask.response("POST", PLANS, plan()).delay_s == 2.0
    timeline.run_for(2.1)
    later = plan()
    later["metadata"]["name"] = "later"
    assert ask.response("POST", PLANS, later).delay_s == 0.0


def test_a_kind_that_goes_takes_no_new_objects(ask: Asker) -> None:
    """While a finalizer holds an object, creates are refused and the definition stays; it looks every 5 s."""
    held = plan()
    held["metadata"]["finalizers"] = ["example.org/hold"]
    ask("POST", PLANS, held)
    name = f"{CRDS}/plans.fleet.example.org"
    ask("DELETE", name)
    ask.server.timeline.run_for(1.0)
    fresh = plan()
    fresh["metadata"]["name"] = "fresh"
    ask.refused(403, "POST", PLANS, fresh)
    reasons = {each["type"]: each["reason"] for each in ask("GET", name)["status"]["conditions"]}
    assert reasons["Terminating"] == "InstanceDeletionInProgress"
    ask("PATCH", f"{PLANS}/{held['metadata']['name']}", {"metadata": {"finalizers": None}})
    ask.server.timeline.run_for(1.0)
    assert ask("GET", PLANS)["items"] == []
    ask.server.timeline.run_for(5.0)
    ask.refused(404, "GET", PLANS)


def test_unknown_fields_are_dropped_with_a_warning_or_refused(ask: Asker) -> None:
    """Strict validation refuses; otherwise a warning names the path, and free-form parts keep everything."""
    answer = ask.response("POST", PLANS, plan(surprise=1, free={"kept": 1}))
    assert answer.headers["warning"] == '299 - "unknown field \\"spec.surprise\\""'
    assert answer.plain()["spec"] == {"mode": "Fast", "width": 2, "free": {"kept": 1}}
    message = ask.refused(400, "POST", PLANS, plan("q", surprise=1), fieldValidation="Strict")
    assert message.endswith('strict decoding error: unknown field "spec.surprise"')


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"mode": "Odd"}, 'spec.mode: Unsupported value: "Odd": supported values: "Fast", "Safe"'),
        ({"width": 0}, "spec.width: Invalid value: 0: spec.width in body should be greater than or equal to 1"),
        ({"width": "two"}, 'spec.width: Invalid value: "string": spec.width in body must be of type integer: "string"'),
        ({"note": "longer"}, "spec.note: Too long: may not be more than 5 bytes"),
        ({"until": "noon"}, 'spec.until: Invalid value: "noon": spec.until in body must be of type date-time: "noon"'),
        ({"steps": [{"name": "a"}, {"name": "a"}]}, 'spec.steps[1]: Duplicate value: {"name":"a"}'),
        ({"steps": [{"name": c} for c in "abcd"]}, "spec.steps: Too many: 4: must have at most 3 items"),
        ({"mode": "Safe", "width": 9}, "spec: Invalid value: a safe plan is narrow"),
    ],
)
def test_what_breaks_the_schema_is_refused_by_field(ask: Asker, spec: Obj, words: str) -> None:
    """422 with the path, the value and the rule."""
    assert words in ask.refused(422, "POST", PLANS, plan(**spec))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (7, "cannot unmarshal number into Go struct field Plan.metadata of type v1.ObjectMeta"),
        ({"labels": []}, "cannot unmarshal array into Go struct field ObjectMeta.metadata.labels of type map"),
        ({"ownerReferences": 1}, "cannot unmarshal number into Go struct field ObjectMeta.metadata.ownerReferences"),
        ({"ownerReferences": ["x"]}, "cannot unmarshal string into Go struct field"),
        ({"finalizers": {}}, "cannot unmarshal object into Go struct field ObjectMeta.metadata.finalizers"),
    ],
)
def test_metadata_of_another_type_is_refused(ask: Asker, metadata: Any, words: str) -> None:
    """A create and an update are refused alike, and the server goes on."""
    ask("POST", PLANS, plan())
    if isinstance(metadata, dict):
        metadata = {"name": "p"} | metadata
    assert words in ask.refused(400, "POST", PLANS, plan() | {"metadata": metadata})
    assert words in ask.refused(400, "PUT", f"{PLANS}/p", plan() | {"metadata": metadata})


def test_a_whole_number_beyond_64_bits_is_a_float(ask: Asker) -> None:
    """Where no type says what a number is, Go decodes it so; rules read it."""
    assert ask("POST", PLANS, plan(share=10**20, free={"a": [10**30]}))["spec"]["free"] == {"a": [1e30]}


def test_rules_wait_until_the_object_fits_its_schema(ask: Asker) -> None:
    """A value of a wrong type hides the rules, and the answer says so."""
    message = ask.refused(422, "POST", PLANS, plan(mode="Safe", width=9, share="x"))
    assert "a safe plan is narrow" not in message
    assert "some validation rules were not checked" in message


def test_transition_rules_compare_with_the_stored_object(ask: Asker) -> None:
    """They do not stop a creation, and they stop a change."""
    ask("POST", PLANS, plan())
    assert "mode is immutable" in ask.refused(422, "PATCH", f"{PLANS}/p", {"spec": {"mode": "Safe"}})
    assert ask("PATCH", f"{PLANS}/p", {"spec": {"width": 3}})["metadata"]["generation"] == 2


def test_what_was_stored_before_a_stricter_schema_may_stay(ask: Asker) -> None:
    """An update is refused for what it changes, not for what it leaves."""
    ask("POST", PLANS, plan(width=9))
    stricter = copy.deepcopy(definition()["spec"]["versions"])
    stricter[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["width"]["maximum"] = 5
    ask("PATCH", f"{CRDS}/plans.fleet.example.org", {"spec": {"versions": stricter}})
    ask.server.timeline.run_for(1.0)
    assert ask("PATCH", f"{PLANS}/p", {"metadata": {"labels": {"a": "b"}}})["spec"]["width"] == 9
    assert "less than or equal to 5" in ask.refused(422, "PATCH", f"{PLANS}/p", {"spec": {"width": 8}})


def test_status_and_spec_are_written_apart(ask: Asker) -> None:
    """Each subresource ignores the other part; the generation counts the spec alone."""
    ask("POST", PLANS, plan() | {"status": {"seen": 7}})
    assert "status" not in ask("GET", f"{PLANS}/p")
    seen = ask("PATCH", f"{PLANS}/p/status", {"spec": {"width": 9}, "status": {"seen": 1}})
    assert (seen["spec"]["width"], seen["status"], seen["metadata"]["generation"]) == (2, {"seen": 1}, 1)
    assert "observed" not in ask("PATCH", f"{PLANS}/p/status", {"status": {"observed": 1}})["status"]
    message = ask.refused(422, "PATCH", f"{PLANS}/p/status", {"status": {"seen": "x"}})
    assert 'status.seen: Invalid value: "string": seen in body must be of type integer: "string"' in message


def test_scale_reads_and_writes_the_paths_of_the_definition(ask: Asker) -> None:
    """A Scale of autoscaling/v1 stands for the field behind specReplicasPath."""
    ask("POST", PLANS, plan())
    assert ask("GET", f"{PLANS}/p/scale")["spec"] == {"replicas": 2}
    ask("PATCH", f"{PLANS}/p/scale", {"spec": {"replicas": 4}})
    assert ask("GET", f"{PLANS}/p")["spec"]["width"] == 4


def test_a_strategic_patch_names_the_types_that_work(ask: Asker) -> None:
    """Custom resources have no strategic merge."""
    ask("POST", PLANS, plan())
    message = ask.refused(415, "PATCH", f"{PLANS}/p", {}, media="application/strategic-merge-patch+json")
    assert message.endswith("application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml")


def test_a_deleted_definition_takes_its_objects_and_watches_along(ask: Asker) -> None:
    """Each object is DELETED, the stream ends, the path is gone; defined again, it is empty."""
    ask("POST", PLANS, plan("a"))
    ask("POST", PLANS, plan("b"))
    stream = ask.watch(PLANS)
    going = ask("DELETE", f"{CRDS}/plans.fleet.example.org")
    assert [each["type"] for each in going["status"]["conditions"]][-1] == "Terminating"
    ask.server.timeline.run_for(1.0)
    assert [event.type for event in stream.take()] == ["ADDED", "ADDED", "DELETED", "DELETED"]
    assert stream.closed
    assert ask.refused(404, "GET", PLANS) == "404 page not found\n"
    ask("POST", CRDS, definition())
    ask.server.timeline.run_for(1.0)
    assert ask("GET", PLANS)["items"] == []


def test_versions_share_objects_and_differ_in_shape() -> None:
    """What is written in one version is read in the other, with its fields and defaults; an unserved one is gone."""
    ask = Asker(small_cluster())
    crd = definition()
    newer = {
        "name": "v2",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {
                    "spec": {
                        "type": "object",
                        "properties": {"mode": {"type": "string"}, "level": {"type": "integer", "default": 7}},
                    }
                },
            }
        },
    }
    crd["spec"]["versions"][0]["storage"] = False
    crd["spec"]["versions"].append(newer)
    ask("POST", CRDS, crd)
    ask.server.timeline.run_for(1.0)
    assert ask("POST", PLANS, plan())["apiVersion"] == "fleet.example.org/v1"
    shown = ask("GET", PLANS.replace("/v1/", "/v2/") + "/p")
    assert (shown["apiVersion"], shown["spec"]) == ("fleet.example.org/v2", {"mode": "Fast", "level": 7})
    patch = [{"op": "replace", "path": "/spec/versions/0/served", "value": False}]
    ask("PATCH", f"{CRDS}/plans.fleet.example.org", patch, media="application/json-patch+json")
    ask.server.timeline.run_for(1.0)
    assert ask.refused(404, "GET", f"{PLANS}/p") == "404 page not found\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"properties": {"a": {"properties": {}}}}, "properties[a].type: Required value: must not be empty"),
        ({"properties": {"a": {"type": "array"}}}, "properties[a].items: Required value: must be specified"),
        ({"x-kubernetes-validations": [{"rule": "self.nope > 0"}]}, "undefined field 'nope'"),
        ({"x-kubernetes-validations": [{"rule": "nope > 0"}]}, "undeclared reference to 'nope'"),
        ({"x-kubernetes-validations": [{"rule": "size(self.a"}]}, "Syntax error"),
        (
            {"properties": {"a": {"type": "number"}},
             "x-kubernetes-validations": [{"rule": "true", "messageExpression": "'x' + string(self.a)"}]},
            "estimated messageExpression cost exceeds budget by factor of more than 100x",
        ),
    ],
)  # fmt: skip
def test_a_schema_that_no_server_would_take_is_refused(change: Obj, words: str) -> None:
    """The field and the mistake are named, and the definition is not stored."""
    ask = Asker(small_cluster())
    crd = definition({"type": "object"} | change)
    assert words in ask.refused(422, "POST", CRDS, crd)
    assert ask.refused(404, "GET", f"{CRDS}/plans.fleet.example.org")


def test_the_columns_of_a_definition_make_the_table() -> None:
    """Cells come from JSON paths; a path that leads nowhere is null; a date is an age."""
    ask = Asker(small_cluster(), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    columns = [
        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
        {"name": "First", "type": "string", "jsonPath": ".spec.steps[*].name", "priority": 1},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    ask("POST", CRDS, definition(additionalPrinterColumns=columns))
    ask.server.timeline.run_for(1.0)
    ask("POST", PLANS, plan(steps=[{"name": "one"}, {"name": "two"}]))
    ask.server.timeline.run_for(200.0)
    found = ask("GET", PLANS)
    assert [each["name"] for each in found["columnDefinitions"]] == ["Name", "Mode", "First", "Ready", "Age"]
    assert found["rows"][0]["cells"] == ["p", "Fast", "one", None, "3m20s"]


def test_defaults_come_from_the_outside_in_and_nulls_give_way() -> None:
    """A default object gets the defaults of its own fields; null is absent unless the schema allows it."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "object", "default": {}, "properties": {"b": {"type": "integer", "default": 1}}},
            "c": {"type": "string", "nullable": True, "default": "x"},
            "d": {"type": "string"},
        },
    }
    obj: Obj = {"c": None, "d": None}
    fill_defaults(obj, schema)
    assert obj == {"a": {"b": 1}, "c": None}


def test_metadata_keeps_what_every_object_may_have() -> None:
    """Labels stay although no schema names them; an unknown field of metadata goes."""
    obj = {"apiVersion": "x/v1", "kind": "X", "metadata": {"labels": {"a": "b"}, "colour": "red"}, "rest": 1}
    assert prune(obj, {"type": "object"}) == ["metadata.colour", "rest"]
    assert obj == {"apiVersion": "x/v1", "kind": "X", "metadata": {"labels": {"a": "b"}}}


def test_a_rule_over_an_absent_field_fails_with_the_missing_key() -> None:
    """The text is not the message of the rule: it says which key was missing."""
    rules = {"rule": "size(self.steps) > 0", "message": "needs steps"}
    schema = {"type": "object", "properties": {"spec": SPEC | {"x-kubernetes-validations": [rules]}}}
    errors = validate({"spec": {"mode": "Fast"}}, None, schema, Rules(schema))
    assert [str(each) for each in errors] == ["spec: Invalid value: no such key: steps evaluating rule: needs steps"]
