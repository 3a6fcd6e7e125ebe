"""Tokens of service accounts: signed JSON web tokens, bound to the uid of the account and to a time."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from apiserver.users import User, service_account

Obj = dict[str, Any]
AUDIENCE = ISSUER = "https://kubernetes.default.svc"
EXTRA = "authentication.kubernetes.io/"
CREDENTIAL_ID = f"{EXTRA}credential-id"
SHORTEST_S = 600
LONGEST_S = 1 << 32
USUAL_S = 3600


class TokenMaker:
    """Makes and reads tokens under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(
        self, account: Obj, *, audiences: Sequence[str], now_s: float, lifetime_s: int, token_id: str, bound: Obj | None
    ) -> str:
        """A token for a service account object; `bound` is the boundObjectRef of the request."""
        metadata = account["metadata"]
        home: Obj = {
            "namespace": metadata["namespace"],
            "serviceaccount": {"name": metadata["name"], "uid": metadata["uid"]},
        }
        if bound:
            home[bound.get("kind", "Pod").lower()] = {"name": bound.get("name", ""), "uid": bound.get("uid", "")}
        claims = {
            "aud": list(audiences),
            "exp": int(now_s) + lifetime_s,
            "iat": int(now_s),
            "iss": ISSUER,
            "jti": token_id,
            "kubernetes.io": home,
            "sub": f"system:serviceaccount:{metadata['namespace']}:{metadata['name']}",
        }
        text = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        return f"{text}.{self._signature(text)}"

    def claims(self, token: str) -> Obj | None:
        """The claims of a token; None for one of another maker."""
        text, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._signature(text).encode(), signature.encode()):
            return None
        try:
            found: Obj = json.loads(_decoded(text.partition(".")[2]))
        except (ValueError, binascii.Error):
            return None
        return found

    def _signature(self, text: str) -> str:
        return _base64(hmac.new(self._key, text.encode(), hashlib.sha256).digest())


def user_of(claims: Obj) -> User:
    """The user of a valid token."""
    home = claims["kubernetes.io"]
    account = home["serviceaccount"]
    user = service_account(home["namespace"], account["name"], account["uid"])
    extra = {CREDENTIAL_ID: [f"JTI={claims['jti']}"]}
    for kind in ("node", "pod"):
        if kind in home:
            extra |= {f"{EXTRA}{kind}-{key}": [home[kind][key]] for key in ("name", "uid")}
    return User(user.name, user.groups, user.uid, extra)


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _encoded(value: Obj) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
