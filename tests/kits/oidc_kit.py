"""A small OpenID Connect provider over HTTP: discovery, authorization, token and keys, with RSA keys of joserfc.

What it says of a person can be changed by a test: claims, headers, the signing key, and whether it answers.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import RSAKey

from autopilot.http.app import service_app
from autopilot.http.desk import Desk
from autopilot.http.oidc import Provider
from autopilot.service.settings import Oidc, Role

PUBLIC = "http://127.0.0.1:9470"
SECRET = "the-secret:of/this+client"
GROUPS = {"gpu-admins": Role.ADMIN, "gpu-oncall": Role.APPROVER, "ml": Role.VIEWER}


@cache
def key(kid: str, number: int = 0) -> RSAKey:
    """A key pair, made once; `number` tells keys of one id apart."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


class TestProvider:
    """The provider. `sign` makes the ID token of its claims; a test may replace it."""

    __test__ = False

    def __init__(self) -> None:
        self.issuer = ""  # known once it listens
        self.person: dict[str, Any] = {"sub": "00u1", "preferred_username": "ada", "groups": ["ml", "gpu-oncall"]}
        self.changed: dict[str, Any] = {}  # claims of the next ID tokens, over the right ones; None leaves one out
        self.keys = [key("k1")]  # the first one signs
        self.sign: Callable[[dict[str, Any]], str] = self._signed
        self.metadata: dict[str, Any] = {}  # over the right ones
        self.down = False
        self.asked: list[str] = []  # paths
        self._begun: dict[str, dict[str, str]] = {}  # the query of each code, which is good for one exchange

    def answer(self, path: str, query: dict[str, str]) -> tuple[int, dict[str, Any] | str]:
        """Status and document, or the address of a redirect, for a GET."""
        self.asked.append(path)
        if path == "/.well-known/openid-configuration":
            url = self.issuer
            found = {
                "issuer": url,
                "authorization_endpoint": f"{url}/authorize",
                "token_endpoint": f"{url}/token",
                "jwks_uri": f"{url}/keys",
            }
            return 200, found | self.metadata
        if path == "/keys":
            return 200, {"keys": [each.as_dict(private=False) for each in self.keys]}
        assert path == "/authorize", path
        code = f"code-{len(self._begun)}"
        self._begun[code] = query
        return 302, f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Tokens for a code, where client, verifier and redirect address are those of its sign-in."""
        self.asked.append("/token")
        client, _, secret = b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote(client), unquote(secret)) != ("autopilot", SECRET):
            return 401, {"error": "invalid_client"}
        query = self._begun.pop(form["code"], None)
        challenge = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        if query is None or challenge != query["code_challenge"] or form["redirect_uri"] != query["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        now_s = int(time.time())
        claims = {"iss": self.issuer, "aud": "autopilot", "iat": now_s, "exp": now_s + 300, "nonce": query["nonce"]}
        claims |= self.person | self.changed
        return 200, {"id_token": self.sign({name: each for name, each in claims.items() if each is not None})}

    def _signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": self.keys[0].kid}, claims, self.keys[0])


@contextmanager
def provider() -> Iterator[TestProvider]:
    """A provider that listens on loopback."""
    made = TestProvider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            self._send(*made.answer(parts.path, dict(parse_qsl(parts.query))))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            self._send(*made.exchange(self.headers.get("Authorization", ""), dict(parse_qsl(body))))

        def _send(self, status: int, found: dict[str, Any] | str) -> None:
            self.send_response(500 if made.down else status)
            if isinstance(found, str):
                self.send_header("Location", found)
                found = {}
            self.end_headers()
            self.wfile.write(b"" if made.down else json.dumps(found).encode())

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.issuer = f"http://127.0.0.1:{server.server_port}"
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()


def client_of(folder: Path, issuer: str, clock_s: Callable[[], float], **more: Any) -> Provider:
    """Our side of it, with the roles of `GROUPS`."""
    secret = folder / "client-secret"
    secret.write_text("another-secret" if more.pop("wrong_secret", False) else SECRET)
    settings = Oidc(name="Corp", issuer=issuer, client_id="autopilot", secret_file=secret, roles=GROUPS, **more)
    return Provider(settings, PUBLIC, clock_s)


def browser(desk: Desk) -> TestClient:
    """A browser at the public address that does not follow redirects by itself."""
    return TestClient(service_app(desk), base_url=PUBLIC, follow_redirects=False)
