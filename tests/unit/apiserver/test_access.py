"""Rights, tokens, quotas and policies, and bodies in protobuf."""

from __future__ import annotations

import pytest

from apiserver.protobuf import ProtobufError, decode
from apiserver.tables.columns import short_duration
from apiserver.users import service_account
from tests.kits.apiserver_kit import Asker, Obj, small_cluster

RBAC = "/apis/rbac.authorization.k8s.io/v1"
NAMESPACE = b'k8s\x00\n\x0f\n\x02v1\x12\tNamespace\x12\x19\n\x11\n\x01a\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00'
NAMESPACE += b'\x12\x00\x1a\x02\n\x00\x1a\x00"\x00'


def pod(name: str, gpus: int = 0, **labels: str) -> Obj:
    """A pod that asks for GPUs."""
    amounts = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = {"name": "main", "image": "app:1", "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


@pytest.fixture
def ask() -> Asker:
    """The administrator."""
    return Asker(small_cluster())


def bound(ask: Asker, *verbs: str, resource: str = "configmaps", names: tuple[str, ...] = ()) -> Asker:
    """A service account of the default namespace with these rights there."""
    account = ask("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "bot"}})
    rule = {"verbs": list(verbs), "apiGroups": [""], "resources": [resource]}
    rule |= {"resourceNames": list(names)} if names else {}
    ask("POST", f"{RBAC}/namespaces/default/roles", {"metadata": {"name": "r"}, "rules": [rule]})
    subject = {"kind": "ServiceAccount", "name": "bot", "namespace": "default"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    body = {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [subject]}
    ask("POST", f"{RBAC}/namespaces/default/rolebindings", body)
    return Asker(ask.server, service_account("default", "bot", account["metadata"]["uid"]))


def test_a_right_is_for_one_verb_in_one_namespace(ask: Asker) -> None:
    """What the role does not name is refused, with verb, resource and place."""
    bot = bound(ask, "list")
    bot("GET", "/api/v1/namespaces/default/configmaps")
    message = bot.refused(403, "GET", "/api/v1/namespaces/default/configmaps", watch="1")
    assert 'cannot watch resource "configmaps" in API group "" in the namespace "default"' in message
    assert "at the cluster scope" in bot.refused(403, "GET", "/api/v1/configmaps")


def test_a_right_for_one_name_covers_lists_of_that_name(ask: Asker) -> None:
    """A field selector on metadata.name counts as the name."""
    bot = bound(ask, "get", "list", names=("kill",))
    bot("GET", "/api/v1/namespaces/default/configmaps", fieldSelector="metadata.name=kill")
    assert bot.refused(404, "GET", "/api/v1/namespaces/default/configmaps/kill")
    assert bot.refused(403, "GET", "/api/v1/namespaces/default/configmaps")
    assert bot.refused(403, "GET", "/api/v1/namespaces/default/configmaps/other")


def test_nobody_grants_what_they_do_not_hold(ask: Asker) -> None:
    """Creating a role needs its rights."""
    bot = bound(ask, "*", resource="configmaps")
    role = {"metadata": {"name": "more"}, "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"]}]}
    path = f"{RBAC}/namespaces/default/roles"
    rule = {"verbs": ["create"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}
    ask("PATCH", f"{path}/r", {"rules": [rule]})
    assert "attempting to grant RBAC permissions not currently held" in bot.refused(403, "POST", path, role)


def test_a_token_of_a_deleted_account_works_until_it_is_looked_at_again(ask: Asker) -> None:
    """The server remembers an accepted token for ten seconds."""
    bound(ask, "list")
    path = "/api/v1/namespaces/default/serviceaccounts/bot"
    token = ask("POST", f"{path}/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    bot = Asker(ask.server, None, authorization=f"Bearer {token}")
    bot("GET", "/api/v1/namespaces/default/configmaps")
    ask("DELETE", path)
    ask.server.timeline.run_for(5.0)
    assert bot.response("GET", "/api/v1/namespaces/default/configmaps").status == 200
    ask.server.timeline.run_for(6.0)
    assert bot.refused(401, "GET", "/api/v1/namespaces/default/configmaps") == "Unauthorized"
    assert Asker(ask.server, None, authorization="Bearer x").refused(401, "GET", "/version") == "Unauthorized"


@pytest.mark.parametrize("kind", ["ResourceQuota", "LimitRange"])
def test_a_bound_without_a_spec_bounds_nothing(ask: Asker, kind: str) -> None:
    """It is stored with an empty one, and pods are made as before."""
    made = ask("POST", f"/api/v1/namespaces/default/{kind.lower()}s", {"kind": kind, "metadata": {"name": "none"}})
    assert made["spec"] == {}
    ask("POST", "/api/v1/namespaces/default/pods", pod("p", 1))


def test_a_quota_counts_at_admission_and_again_when_a_pod_goes(ask: Asker) -> None:
    """What would pass it is refused with numbers, in a dry run too; a deletion gives room back."""
    pods = "/api/v1/namespaces/default/pods"
    ask(
        "POST",
        "/api/v1/namespaces/default/resourcequotas",
        {"metadata": {"name": "gpus"}, "spec": {"hard": {"requests.nvidia.com/gpu": "4"}}},
    )
    ask.server.timeline.run_for(1.0)
    ask("POST", pods, pod("a", 3))
    words = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=3, limited"
    assert words in ask.refused(403, "POST", pods, pod("b", 2))
    assert words in ask.refused(403, "POST", pods, pod("b", 2), dryRun="All")
    ask("DELETE", f"{pods}/a", {"gracePeriodSeconds": 0})
    ask.server.timeline.run_for(1.0)
    ask("POST", pods, pod("b", 2))


def test_a_policy_denies_where_it_is_bound(ask: Asker) -> None:
    """After its delay, in namespaces with the label, with its message and reason."""
    group = "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    validation = {
        "expression": "!('no' in object.metadata.labels)",
        "message": "label no is refused",
        "reason": "Forbidden",
    }
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    ask("POST", f"{group}/validatingadmissionpolicies", {"metadata": {"name": "guard"}, "spec": spec})
    selector = {"namespaceSelector": {"matchLabels": {"guard": "yes"}}}
    binding = {"policyName": "guard", "validationActions": ["Deny"], "matchResources": selector}
    ask("POST", f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": "guard"}, "spec": binding})
    ask("PATCH", "/api/v1/namespaces/default", {"metadata": {"labels": {"guard": "yes"}}})
    ask.server.timeline.run_for(1.0)
    message = ask.refused(403, "POST", "/api/v1/namespaces/default/pods", pod("x", no="1"))
    assert message.endswith("'guard' with binding 'guard' denied request: label no is refused")
    ask("POST", "/api/v1/namespaces/default/pods", pod("y", yes="1"))
    ask("POST", "/api/v1/namespaces/kube-public/pods", pod("x", no="1"))


def test_a_protobuf_body_is_read_as_the_object_in_it(ask: Asker) -> None:
    """As kubectl sends it; a cut body and an unknown kind are refused, never half read."""
    assert decode(NAMESPACE)["metadata"] == {"name": "a"}
    media = "application/vnd.kubernetes.protobuf"
    assert ask("POST", "/api/v1/namespaces", NAMESPACE, media=media)["metadata"]["name"] == "a"
    with pytest.raises(ProtobufError, match="ends inside"):
        decode(NAMESPACE[:-8])
    with pytest.raises(ProtobufError, match="send JSON"):
        decode(NAMESPACE.replace(b"Namespace", b"Someplace"))
    assert "protobuf" in ask.refused(400, "POST", "/api/v1/namespaces", b"nonsense", media=media)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (305, "5m5s"), (3600, "60m"), (11_400, "3h10m"), (200_000, "2d7h"),
     (28_166_400, "326d"), (-5, "<invalid>")],
)  # fmt: skip
def test_ages_have_at_most_two_units(seconds: int, text: str) -> None:
    """As kubectl prints them."""
    assert short_duration(seconds) == text
