"""Who asked: the users behind the names that a recording gives, their tokens, and the rights that they were given.

A recording names the user of a token (`as`) and never the token. Who that is, is read from what the server answered:
the user of a SelfSubjectReview, or the name in a refusal. The rights of a service account are read from its
SelfSubjectRulesReview; they begin with the first request that was allowed and end with the next one that was refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from apiserver.access.authentication import Authentication
from apiserver.access.bootstrap import RULES
from apiserver.access.tokens import AUDIENCE
from apiserver.server import Server
from apiserver.standard import ADMIN_TOKEN
from apiserver.users import User
from tests.kube.replay.hidden import LEAD_S, HiddenWrite
from tests.kube.replay.recording import Recording, Step

Obj = dict[str, Any]
NAMED = re.compile(r'User "([^"]+)" cannot')
GRANTED = re.compile(r'allowed by RoleBinding "([^/"]+)/([^"]+)" of Role "([^"]+)" to ServiceAccount')
ACCOUNT = "system:serviceaccount:"
PLACEHOLDER = "<jwt>"  # stands for every token in a recording
TOKEN_ID = "11111111-1111-4111-8111-111111111111"
BEFORE_S = -4.0  # when accounts were made that the topic used from its start
RBAC = "rbac.authorization.k8s.io/v1"


def asked_by(request: Obj) -> str:
    """Who asked: the administrator where nothing is said, nobody (`none`) where the name is empty."""
    who = request.get("as")
    return "admin" if who is None else str(who) or "none"


class People:
    """The users of one recording."""

    def __init__(self, recording: Recording, server: Server) -> None:
        self._recording = recording
        self._server = server
        self._tokens = {"admin": ADMIN_TOKEN, "none": ""}
        self._names = {who: self._name_of(who) for who in self._all() if who not in self._tokens}

    def _all(self) -> list[str]:
        return list(dict.fromkeys(asked_by(step.request) for step in self._recording.steps))

    def _steps(self, who: str) -> list[Step]:
        return [step for step in self._recording.steps if asked_by(step.request) == who]

    def _name_of(self, who: str) -> str:
        """The user name that the server saw; "" for a token that it never accepted."""
        for step in self._steps(who):
            body = step.body if isinstance(step.body, dict) else {}
            info = (body.get("status") or {}).get("userInfo") if isinstance(body.get("status"), dict) else None
            found = NAMED.search(str(body.get("message", "")))
            if info:
                return str(info["username"])
            if found:
                return found[1]
        return "" if {step.status for step in self._steps(who)} <= {0, 401} else who

    def headers(self, who: str) -> dict[str, str]:
        """What a request of this user carries."""
        token = self.token(who)
        return {"authorization": f"Bearer {token}"} if token else {}

    def token(self, who: str) -> str:
        """The token of a user, made when it is first used."""
        if who not in self._tokens:
            self._tokens[who] = self._made(self._names[who], who)
        return self._tokens[who]

    def _made(self, name: str, who: str) -> str:
        authentication = self._server.authenticate
        assert isinstance(authentication, Authentication)
        if name.startswith(ACCOUNT):
            namespace, account = name.removeprefix(ACCOUNT).split(":")
            stored = self._server.store.get("serviceaccounts", namespace, account)
            if stored is not None:
                now_s = self._server.timeline.now_s
                return authentication.maker.issue(
                    stored, audiences=[AUDIENCE], now_s=now_s, lifetime_s=3600, token_id=TOKEN_ID, bound=None
                )
        if name:
            authentication.add(f"token-of-{who}", User(name))
        return f"token-of-{who}"

    def with_tokens(self, request: Obj) -> Obj:
        """A request with a real token where the recording hides one."""
        if PLACEHOLDER not in json.dumps(request):
            return request
        accounts = [who for who, name in self._names.items() if name.startswith(ACCOUNT)]
        token = self.token(accounts[0]) if accounts else PLACEHOLDER
        changed: Obj = json.loads(json.dumps(request).replace(PLACEHOLDER, token))
        return changed

    def writes(self) -> Iterator[HiddenWrite]:
        """Service accounts that come and go, and the rights that they are given and lose."""
        for who, name in self._names.items():
            if name.startswith(ACCOUNT):
                namespace, account = name.removeprefix(ACCOUNT).split(":")
                metadata = {"name": account, "namespace": namespace}
                body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
                yield HiddenWrite(BEFORE_S, "POST", "ServiceAccount", "v1", namespace, account, body)
                yield from self._account_ends(who, namespace, account)
                yield from self._rights(who, namespace, account)

    def _account_ends(self, who: str, namespace: str, account: str) -> Iterator[HiddenWrite]:
        accepted = False
        last_s = 0.0
        for step in self._steps(who):
            if step.status == 401 and accepted:
                moment_s = last_s + LEAD_S
                yield HiddenWrite(moment_s, "DELETE", "ServiceAccount", "v1", namespace, account, {})
                return
            accepted, last_s = accepted or step.status != 401, step.t_s + step.latency_s

    def _rights(self, who: str, namespace: str, account: str) -> Iterator[HiddenWrite]:
        steps = self._steps(who)
        review = next((each for each in steps if "selfsubjectrulesreviews" in each.request.get("path", "")), None)
        texts = [json.dumps(each.body).replace("\\", "") for each in steps]
        granted = next((found for text in texts if (found := GRANTED.search(text))), None)
        if review is None or granted is None or not isinstance(review.body, dict):
            return
        binding, home, role = granted.groups()
        usual = [rule for rules in RULES.values() for rule in rules]
        rules = [rule for rule in review.body["status"]["resourceRules"] if rule not in usual]
        start_s, end_s = self._span(steps)
        made = {"apiVersion": RBAC, "kind": "Role", "metadata": {"name": role, "namespace": home}, "rules": rules}
        yield HiddenWrite(start_s, "POST", "Role", RBAC, home, role, made)
        bound = {
            "apiVersion": RBAC,
            "kind": "RoleBinding",
            "metadata": {"name": binding, "namespace": home},
            "roleRef": {"apiGroup": RBAC.partition("/")[0], "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
        yield HiddenWrite(start_s, "POST", "RoleBinding", RBAC, home, binding, bound)
        if end_s is not None:
            yield HiddenWrite(end_s, "DELETE", "RoleBinding", RBAC, home, binding, {})

    def _span(self, steps: list[Step]) -> tuple[float, float | None]:
        """When a request is allowed first that was refused before, and when it is refused again."""
        start_s: float | None = None
        asked: tuple[str, str] | None = None
        refused: set[tuple[str, str]] = set()
        for step in steps:
            if any(name.lower().startswith("impersonate") for name in step.request.get("headers") or {}):
                continue  # about another right
            what = (step.request.get("method", ""), step.request.get("path", ""))
            if step.status == 403:
                if start_s is not None and what == asked:
                    return start_s, step.t_s - LEAD_S
                refused.add(what)
            elif step.status < 300 and start_s is None and what in refused:
                start_s, asked = step.t_s - LEAD_S, what
        return (BEFORE_S if start_s is None else start_s), None
