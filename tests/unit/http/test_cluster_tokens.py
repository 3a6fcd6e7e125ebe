"""Tokens of the cluster: reviewed once, kept for a minute, with the role of the user or group."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from autopilot.http.auth import Caller
from autopilot.http.cluster_tokens import KEPT_S, REVIEWS, UNKNOWN_S, ClusterTokens
from autopilot.kube.cluster_api import Answer
from autopilot.service.settings import ClusterRoles, Role

ROLES = ClusterRoles(
    viewers=("group:research",), approvers=("group:oncall", "user:ada"), admins=("user:root",), alerts=("user:am",)
)


class Reviews:
    """A TokenReview by token, and a clock."""

    def __init__(self, **users: dict[str, Any]) -> None:
        self.users, self.asked, self.now_s = users, 0, 0.0
        self.answer: Answer | None = None

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
        self.asked += 1
        self.body = body
        status = self.users.get(body["spec"]["token"], {"authenticated": False})
        return self.answer or Answer(201, json.dumps({"status": status}))


def _user(name: str, *groups: str, **more: Any) -> dict[str, Any]:
    return {"authenticated": True, "user": {"username": name, "groups": groups}, **more}


def _tokens(reviews: Reviews, roles: ClusterRoles = ROLES) -> ClusterTokens:
    return ClusterTokens([("own-token-of-ops", Caller("ops", Role.ADMIN))], reviews.post, roles, lambda: reviews.now_s)


@pytest.mark.parametrize(
    ("user", "role"),
    [
        (_user("eve", "research"), Role.VIEWER),
        (_user("eve", "research", "oncall"), Role.APPROVER),
        (_user("ada"), Role.APPROVER),
        (_user("root", "research"), Role.ADMIN),
        (_user("am"), Role.ALERTS),
        (_user("stranger", "others"), None),
        (_user("group:oncall"), None),  # a name is no group
        ({"authenticated": False, "user": {"username": "root"}}, None),
        ({"authenticated": "yes", "user": {"username": "root"}}, None),
        (_user(""), None),
    ],
)
def test_a_role_comes_from_user_or_group(user: dict[str, Any], role: Role | None) -> None:
    """The highest one counts; who has none is unknown."""
    caller = _tokens(Reviews(token=user)).caller("token")
    assert (caller.role if caller else None) == role
    assert caller is None or caller.name == user["user"]["username"]


def test_an_answer_is_kept_for_a_while() -> None:
    """One review a minute for a known token, one in ten seconds for an unknown one; a revoked token ends."""
    reviews = Reviews(token=_user("ada"))
    tokens = _tokens(reviews)
    assert tokens.known("token") is None
    for _ in range(3):
        assert tokens.caller("token") == Caller("ada", Role.APPROVER)
    assert tokens.known("token") == Caller("ada", Role.APPROVER)
    assert reviews.asked == 1
    reviews.users.clear()
    reviews.now_s = KEPT_S
    assert tokens.caller("token") is None
    reviews.users["token"] = _user("ada")
    assert tokens.caller("token") is None
    reviews.now_s += UNKNOWN_S
    assert tokens.caller("token") is not None
    assert reviews.asked == 3


def test_tokens_of_the_service_are_never_sent_anywhere() -> None:
    """They are known first."""
    reviews = Reviews()
    tokens = _tokens(reviews)
    assert tokens.caller("own-token-of-ops") == tokens.known("own-token-of-ops") == Caller("ops", Role.ADMIN)
    assert tokens.caller("") is None
    assert tokens.caller("x" * 5000) is None
    assert reviews.asked == 0


def test_a_flood_of_unknown_tokens_does_not_reach_the_server() -> None:
    """Beyond the limit a token is unknown; a token that was valid before is reviewed all the same."""
    reviews = Reviews(good=_user("ada"))
    tokens = _tokens(reviews)
    assert tokens.caller("good")
    for number in range(1000):
        assert tokens.caller(f"bad-{number}") is None
    assert reviews.asked <= REVIEWS.burst
    assert tokens.caller("good")
    reviews.now_s = KEPT_S
    for number in range(1000, 2000):
        assert tokens.caller(f"bad-{number}") is None
    assert tokens.caller("good"), "a token that was valid is reviewed again, however many others come"


@pytest.mark.parametrize("answer", [Answer(0, "timed out"), Answer(403, "{}"), Answer(201, "[]"), Answer(500, "")])
def test_a_server_that_cannot_say_makes_nobody_known(answer: Answer) -> None:
    """And the failure is not kept: the next request asks again."""
    reviews = Reviews(token=_user("root"))
    reviews.answer = answer
    tokens = _tokens(reviews)
    assert tokens.caller("token") is None
    reviews.answer = None
    assert tokens.caller("token") is not None


def test_an_audience_must_be_confirmed() -> None:
    """A token for somebody else is unknown, also where the server ignores the question."""
    roles = ROLES.model_copy(update={"audiences": ("gpu-autopilot",)})
    reviews = Reviews(
        ours=_user("ada", audiences=["gpu-autopilot"]), others=_user("ada", audiences=["vault"]), old=_user("ada")
    )
    tokens = _tokens(reviews, roles)
    assert tokens.caller("ours")
    assert reviews.body["spec"]["audiences"] == ["gpu-autopilot"]
    assert tokens.caller("others") is None
    assert tokens.caller("old") is None
