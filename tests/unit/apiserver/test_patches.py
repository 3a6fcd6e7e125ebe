"""Patches of every type, and who owns which field after them."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest

from apiserver.errors import StatusError
from apiserver.kinds.internal import difference, internal
from apiserver.patches.fieldsets import compare, from_fields_v1, to_fields_v1
from apiserver.patches.strategic import strategic_patch
from apiserver.requests import Request, Response
from apiserver.schemas import schema
from apiserver.server import Server
from apiserver.timeline import Timeline
from apiserver.users import ADMIN

MAPS = "/api/v1/namespaces/default/configmaps"
POD = schema("Pod")


def test_a_strategic_patch_joins_lists_by_their_key() -> None:
    """Containers by name, gates by name; taints have no key and are replaced."""
    pod = {"spec": {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:1"}]}}
    patched = strategic_patch(POD, pod, {"spec": {"containers": [{"name": "b", "image": "y:2"}]}})
    assert [each["image"] for each in patched["spec"]["containers"]] == ["x:1", "y:2"]
    node = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    taint = {"key": "b", "effect": "NoExecute"}
    assert strategic_patch(schema("Node"), node, {"spec": {"taints": [taint]}})["spec"]["taints"] == [taint]


def test_a_strategic_patch_deletes_by_directive_alone() -> None:
    """An empty list removes nothing."""
    pod = {"spec": {"schedulingGates": [{"name": "a"}, {"name": "b"}]}}
    assert strategic_patch(POD, pod, {"spec": {"schedulingGates": []}}) == pod
    gone = {"spec": {"schedulingGates": [{"$patch": "delete", "name": "a"}]}}
    assert strategic_patch(POD, pod, gone) == {"spec": {"schedulingGates": [{"name": "b"}]}}


def test_a_strategic_patch_puts_new_entries_first() -> None:
    """As the API server does where the patch states no order."""
    pod = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    patched = strategic_patch(POD, pod, {"status": {"conditions": [{"type": "Own", "status": "True"}]}})
    assert [each["type"] for each in patched["status"]["conditions"]] == ["Own", "Ready"]


def test_a_set_of_fields_survives_its_written_form() -> None:
    """FieldsV1 and back."""
    old: dict[str, Any] = {"spec": {"containers": []}}
    new = {"spec": {"containers": [{"name": "a", "image": "x:1"}], "nodeSelector": {"k": "v"}}}
    fields = compare(POD, old, new).changed
    assert ("f:spec", "f:nodeSelector") in fields  # atomic: not its keys
    assert ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image") in fields
    assert from_fields_v1(to_fields_v1(fields)) == fields


@pytest.fixture
def server() -> Server:
    """A server without controllers."""
    made = Server(Timeline(datetime(2026, 11, 23, tzinfo=UTC)), random.Random(1))
    made.client(ADMIN, "test").create("namespaces", {"metadata": {"name": "default"}})
    return made


def _apply(server: Server, manager: str, data: dict[str, str], **query: str) -> Response:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": data}
    headers = {"content-type": "application/apply-patch+yaml"}
    answer = server.handle(Request("PATCH", f"{MAPS}/s", {"fieldManager": manager, **query}, headers, body, ADMIN))
    assert isinstance(answer, Response)
    return answer


def test_an_apply_owns_what_it_states_and_conflicts_with_other_owners(server: Server) -> None:
    """Force takes a field over; a field that an owner leaves out goes."""
    assert _apply(server, "a", {"x": "1", "y": "1"}).status == 201
    refused = _apply(server, "b", {"x": "2"})
    assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (409, ".data.x")
    assert _apply(server, "b", {"x": "2"}, force="true").body["data"] == {"x": "2", "y": "1"}
    assert _apply(server, "a", {"z": "1"}).body["data"] == {"x": "2", "z": "1"}


def test_a_field_that_two_own_stays_until_both_leave_it_out(server: Server) -> None:
    """Equal values are shared, not a conflict."""
    _apply(server, "a", {"x": "1"})
    assert _apply(server, "b", {"x": "1"}).status == 200
    assert _apply(server, "a", {}).body["data"] == {"x": "1"}
    assert "x" not in (_apply(server, "b", {}).body.get("data") or {})


def test_an_apply_of_an_unknown_field_fails_and_a_merge_patch_drops_it(server: Server) -> None:
    """As the schema is asked."""
    _apply(server, "a", {"x": "1"})
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "dta": {}}
    headers = {"content-type": "application/apply-patch+yaml"}
    with pytest.raises(StatusError, match="field not declared in schema"):
        server.answer(Request("PATCH", f"{MAPS}/s", {"fieldManager": "a"}, headers, body, ADMIN))
    patched = server.client(ADMIN, "m").patch("configmaps", "default", "s", {"dta": {"x": "1"}})
    assert "dta" not in patched


def test_a_refused_update_shows_the_lines_that_differ() -> None:
    """In the internal form, with three lines around them."""
    old = {"containers": [{"name": "a", "image": "x"}], "schedulerName": "one"}
    lines = difference(internal("PodSpec", old), internal("PodSpec", old | {"schedulerName": "two"})).splitlines()
    assert lines[0].startswith("@@ -")
    assert [line for line in lines[1:] if line[0] in "+-"] == ['- "SchedulerName": "one",', '+ "SchedulerName": "two",']
