"""Kinds for questions, never stored: reviews of tokens and rights, and requests for tokens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from apiserver.access.authentication import Authentication
from apiserver.access.rules import Attributes, decide, grants
from apiserver.access.tokens import AUDIENCE, LONGEST_S, SHORTEST_S, USUAL_S
from apiserver.decoding import decode_object
from apiserver.errors import Named, invalid, invalid_value, not_found, shown
from apiserver.kinds.base import Call, Kind, State
from apiserver.requests import Response
from apiserver.timeline import stamp
from apiserver.users import User

Obj = dict[str, Any]
AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


def _authentication(server: State) -> Authentication | None:
    return server.authenticate if isinstance(server.authenticate, Authentication) else None


def _answer(given: Obj, status: Obj, metadata: Obj | None = None) -> Response:
    body: Obj = {"kind": given["kind"], "apiVersion": given["apiVersion"], "metadata": metadata or {}}
    if "spec" in given:
        body["spec"] = given["spec"]
    return Response(201, body | {"status": status})


def _user_info(user: User) -> Obj:
    info: Obj = {"username": user.name}
    if user.uid:
        info["uid"] = user.uid
    info["groups"] = list(user.groups)
    if user.extra:
        info["extra"] = user.extra
    return info


def token_review(server: State, call: Call) -> Response:
    """The user of a token."""
    given = decode_object(call, call.kind)
    spec = given.setdefault("spec", {})
    authentication = _authentication(server)
    user = authentication.user_of(spec.get("token", "")) if authentication is not None else None
    if user is None:
        return _answer(given, {"user": {}, "error": "invalid bearer token"})
    audiences = spec.get("audiences") or [AUDIENCE]
    return _answer(given, {"authenticated": True, "user": _user_info(user), "audiences": audiences})


def self_subject_review(server: State, call: Call) -> Response:
    """The asking user."""
    given = decode_object(call, call.kind)
    metadata = {"creationTimestamp": stamp(server.timeline.now)}
    return _answer(given, {"userInfo": _user_info(call.user)}, metadata)


def self_subject_access_review(server: State, call: Call) -> Response:
    """The verdict on a right of the asking user."""
    given = decode_object(call, call.kind)
    _check(call, given.setdefault("spec", {}))
    return _answer(given, _verdict(server, call.user, given["spec"]))


def subject_access_review(server: State, call: Call) -> Response:
    """The verdict on a right of another user."""
    given = decode_object(call, call.kind)
    spec = given.setdefault("spec", {})
    _check(call, spec, subject=True)
    user = User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""))
    return _answer(given, _verdict(server, user, spec))


def _check(call: Call, spec: Obj, *, subject: bool = False) -> None:
    """A review asks about one thing, and of somebody. Raises StatusError 422."""
    names = ("resourceAttributes", "nonResourceAttributes")
    given = [name for name in names if spec.get(name) is not None]
    errors = []
    if len(given) > 1:
        path = spec[names[1]]
        raw = shown({"Path": path.get("path", ""), "Verb": path.get("verb", "")})
        text = "cannot be specified in combination with resourceAttributes"
        errors.append(invalid_value(f"spec.{names[1]}", None, text, raw=raw))
    if not given:
        text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.append(invalid_value(f"spec.{names[0]}", None, text))
    if subject and not spec.get("user") and not spec.get("groups"):
        errors.append(invalid_value("spec.user", "", "at least one of user or group must be specified"))
    if errors:
        raise invalid(call.kind.named(), errors)


def _verdict(server: State, user: User, spec: Obj) -> Obj:
    about, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if path is not None:
        wanted = Attributes(path.get("verb", ""), path=path.get("path", ""))
    else:
        names = ("verb", "group", "resource", "subresource", "namespace", "name")
        wanted = Attributes(**{name: (about or {}).get(name, "") for name in names})
    allowed, reason = decide(server.store, user, wanted)
    return {"allowed": allowed, "reason": reason} if reason else {"allowed": allowed}


def self_subject_rules_review(server: State, call: Call) -> Response:
    """All rights of the asking user in a namespace. The answer leaves out the question."""
    given = decode_object(call, call.kind)
    namespace = given.get("spec", {}).get("namespace", "")
    resources: list[Obj] = []
    paths: list[Obj] = []
    for grant in grants(server.store, call.user, namespace):
        rule = grant.rule
        names = ("verbs", "apiGroups", "resources", "resourceNames")
        if rule.get("nonResourceURLs"):
            paths.append({"verbs": rule["verbs"], "nonResourceURLs": rule["nonResourceURLs"]})
        else:
            resources.append({name: rule[name] for name in names if rule.get(name)})
    given["spec"] = {}
    return _answer(given, {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False})


def token_request(server: State, call: Call) -> Response:
    """A new token for a service account."""
    kind = Kind(AUTHENTICATION, "v1", "tokenrequests", "TokenRequest")
    given = decode_object(call, kind)
    account = server.store.get("serviceaccounts", call.namespace, call.name)
    if account is None:
        raise not_found(call.kind.named(call.name))
    spec = given.get("spec") or {}
    lifetime_s = spec.get("expirationSeconds", USUAL_S)
    why = ""
    if lifetime_s < SHORTEST_S:
        why = "may not specify a duration less than 10 minutes"
    elif lifetime_s > LONGEST_S:
        why = "may not specify a duration larger than 2^32 seconds"
    if why:
        name = given.get("metadata", {}).get("name", "")
        about = Named(AUTHENTICATION, "tokenrequests", "TokenRequest", name)
        raise invalid(about, [invalid_value("spec.expirationSeconds", lifetime_s, why)])
    audiences = spec.get("audiences") or [AUDIENCE]
    bound = spec.get("boundObjectRef")
    now = server.timeline.now
    authentication = _authentication(server)
    token = ""
    if authentication is not None:
        token = authentication.maker.issue(
            account,
            audiences=audiences,
            now_s=server.timeline.now_s,
            lifetime_s=lifetime_s,
            token_id=str(UUID(int=server.rng.getrandbits(128), version=4)),
            bound=bound,
        )
    metadata = account["metadata"]
    head = {name: metadata[name] for name in ("name", "namespace", "uid")} | {"creationTimestamp": stamp(now)}
    given["spec"] = {"audiences": audiences, "expirationSeconds": lifetime_s, "boundObjectRef": bound}
    return _answer(given, {"token": token, "expirationTimestamp": stamp(now + timedelta(seconds=lifetime_s))}, head)


def _review(group: str, plural: str, kind: str, answer: Any, *, namespaced: bool = False) -> Kind:
    return Kind(group, "v1", plural, kind, namespaced=namespaced, verbs=("create",), answer=answer)


REVIEWS = (
    _review(AUTHENTICATION, "selfsubjectreviews", "SelfSubjectReview", self_subject_review),
    _review(AUTHENTICATION, "tokenreviews", "TokenReview", token_review),
    _review(
        AUTHORIZATION, "localsubjectaccessreviews", "LocalSubjectAccessReview", subject_access_review, namespaced=True
    ),
    _review(AUTHORIZATION, "selfsubjectaccessreviews", "SelfSubjectAccessReview", self_subject_access_review),
    _review(AUTHORIZATION, "selfsubjectrulesreviews", "SelfSubjectRulesReview", self_subject_rules_review),
    _review(AUTHORIZATION, "subjectaccessreviews", "SubjectAccessReview", subject_access_review),
)
