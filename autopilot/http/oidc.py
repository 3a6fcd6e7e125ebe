"""Sign-in through an OpenID Connect provider: the authorization code flow with PKCE, and the check of its ID token.

Nothing is kept between the two requests of a sign-in. The browser keeps a random cookie, and state, nonce and verifier
are derived from it with a key of this process. The requests to the provider are few and bounded, and the threads of the
HTTP server make them.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import requests
import structlog
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from autopilot.core.model.errors import InputError
from autopilot.deadline import within
from autopilot.http.auth import ROLES, Caller, token_of
from autopilot.printable import printable
from autopilot.service.settings import Oidc
from collectors.exporter import get_limited, http_session, reason_of

PATH = "/api/v1/session/provider"
CALLBACK = f"{PATH}/callback"
COOKIE = "gpu_autopilot_sign_in"
BEGUN_S = 600.0
"""Longest time of a person at the provider."""
KEPT_S, AGAIN_S = 3600.0, 10.0
"""Lifetime of metadata and keys of the provider, and the least time between two questions for keys."""
ANSWERS_S = 5.0
"""Longest time of one request to the provider; a sign-in makes at most four."""
MOST_AT_ONCE = 4
"""Most sign-ins waiting for the provider at once; the other threads answer the rest of the API."""
LIMIT_BYTES = 1 << 20
SKEW_S = 60
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures with a public key. `none` and shared secrets are not among them."""

T = TypeVar("T")
log: Any = structlog.get_logger("http")


class SignInError(Exception):
    """Reason for a refused sign-in, with the remedy. `who`: the person, if the provider has named one."""

    def __init__(self, status: int, message: str, reason: str, who: str = "") -> None:
        """`status`: of the answer; `reason`: a short one for the audit log."""
        super().__init__(message)
        self.status, self.reason, self.who = status, reason, who


class _Metadata(msgspec.Struct):
    """The used parts of a discovery document."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct):
    id_token: str


class _Refused(msgspec.Struct):
    error: str = ""


class Provider:
    """One provider by the settings. `public_url`: the address of this service for browsers."""

    def __init__(
        self,
        settings: Oidc,
        public_url: str,
        clock_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Raises `InputError` if the client secret cannot be read."""
        self.name, self.session_s = settings.name, settings.session_s
        self.begin_url, self.secure = public_url + PATH, public_url.startswith("https:")
        self._settings, self._callback = settings, public_url + CALLBACK
        self._clock_s, self._now_s = clock_s, now_s
        self._key, self._turns = secrets.token_bytes(32), threading.BoundedSemaphore(MOST_AT_ONCE)
        self._found: tuple[_Metadata, float] | None = None  # with the time of the question
        self._keys: tuple[KeySet, float] | None = None
        client_secret(settings)

    def begin(self) -> tuple[str, str]:
        """The address of the provider to send a browser to, and the value of its cookie. Raises `SignInError`."""
        cookie = f"{self._clock_s() + BEGUN_S:.0f}.{secrets.token_urlsafe(32)}"
        challenge = _text(sha256(self._derived("verifier", cookie).encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._callback,
            "scope": " ".join(self._settings.scopes),
            "state": self._derived("state", cookie),
            "nonce": self._derived("nonce", cookie),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        with self._turn() as session:
            url = self._metadata(session).authorization_endpoint
        return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(query)}", cookie

    def finish(self, cookie: str, given: Mapping[str, str]) -> Caller:
        """The person behind a browser's return with `cookie` and the query `given`. Raises `SignInError`."""
        state = self._derived("state", cookie)
        if not hmac.compare_digest(given.get("state", "").encode(), state.encode()):
            raise SignInError(400, "this browser did not begin it, or the service has restarted; try again", "state")
        if self._clock_s() >= float(cookie.partition(".")[0]):
            raise SignInError(400, f"it took longer than {BEGUN_S / 60:.0f} minutes; try again", "late")
        if given.get("iss", self._settings.issuer) != self._settings.issuer:
            raise SignInError(400, "the answer is of another provider; try again", "issuer")
        if "code" not in given:
            word = _word(given.get("error", ""))
            raise SignInError(403, f"{self.name} refused it ({word}); ask its operator", f"provider: {word}")
        with self._turn() as session:
            tokens = self._asked(lambda: self._exchange(session, given["code"], self._derived("verifier", cookie)))
            try:
                claims = self._claims(session, tokens.id_token, self._derived("nonce", cookie))
            except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
                why = _word(getattr(error, "error", "") or type(error).__name__)
                log.warning("ID token refused", issuer=self._settings.issuer, reason=f"{why}: {error}"[:300])
                words = f"the ID token of {self.name} cannot be trusted ({why}); ask the operator of this service"
                raise SignInError(401, words, f"ID token: {why}") from error
        return self._caller(claims)

    def _derived(self, what: str, cookie: str) -> str:
        """A secret of one sign-in, computable from its cookie by this process only."""
        return _text(hmac.digest(self._key, f"{what} {cookie}".encode(), "sha256"))

    @contextmanager
    def _turn(self) -> Iterator[requests.Session]:
        """A session for one sign-in, if not too many wait for the provider already."""
        if not self._turns.acquire(blocking=False):
            raise SignInError(503, f"{self.name} is slow now; try again in some seconds", "provider is slow")
        try:
            with http_session(1, None) as session:
                if self._settings.ca_file is not None:
                    session.verify = str(self._settings.ca_file)
                yield session
        finally:
            self._turns.release()

    def _asked(self, ask: Callable[[], T]) -> T:
        """The provider's answer; a missing or unreadable answer is a refusal of this sign-in."""
        try:
            return ask()
        except (OSError, ValueError, msgspec.MsgspecError, RecursionError, JoseError, InputError) as error:
            log.warning("sign-in provider failed", issuer=self._settings.issuer, reason=reason_of(error))
            words = f"{self.name} does not answer as it should; sign in with a token, or try again later"
            raise SignInError(503, words, "provider fails") from error

    def _metadata(self, session: requests.Session) -> _Metadata:
        found = self._found
        if found is None or self._clock_s() - found[1] > KEPT_S:
            found = self._found = self._asked(lambda: self._discovered(session)), self._clock_s()
        return found[0]

    def _discovered(self, session: requests.Session) -> _Metadata:
        issuer = self._settings.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        found = msgspec.json.decode(get_limited(session, url, ANSWERS_S, LIMIT_BYTES), type=_Metadata)
        if found.issuer != issuer:
            raise ValueError(f"its issuer is {found.issuer!r}, the setting http.oidc.issuer says {issuer!r}")
        for each in (found.authorization_endpoint, found.token_endpoint, found.jwks_uri):
            if urlsplit(each).scheme not in {"https", urlsplit(issuer).scheme}:
                raise ValueError(f"its endpoint {each!r} is not by HTTPS")
        return found

    def _exchange(self, session: requests.Session, code: str, verifier: str) -> _Tokens:
        """The tokens for a code. Raises `SignInError` if the provider refuses it, else as `get_limited`."""
        metadata, settings = self._metadata(session), self._settings
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "code_verifier": verifier,
        }
        client = (settings.client_id, client_secret(settings))
        auth: tuple[str, str] | None = (quote(client[0], safe=""), quote(client[1], safe=""))  # RFC 6749, 2.3.1
        if "client_secret_basic" not in metadata.token_endpoint_auth_methods_supported:
            form |= {"client_id": client[0], "client_secret": client[1]}
            auth = None
        with (
            within(ANSWERS_S),
            session.post(
                metadata.token_endpoint, form, auth=auth, timeout=ANSWERS_S, stream=True, allow_redirects=False
            ) as answer,
        ):
            body = answer.raw.read(LIMIT_BYTES, decode_content=True)
            if answer.status_code in {400, 401}:
                word = _word(msgspec.json.decode(body, type=_Refused).error)
                log.warning("sign-in provider refused the code", issuer=settings.issuer, error=word)
                raise SignInError(401, f"{self.name} refused the code ({word}); try again", f"provider: {word}")
            if answer.status_code != requests.codes.ok:
                raise OSError(f"HTTP {answer.status_code} of the token endpoint")
        return msgspec.json.decode(body, type=_Tokens)

    def _claims(self, session: requests.Session, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token for this sign-in. Raises `JoseError`, `ValueError` and others."""
        keys, asked_s = self._key_set(session)
        try:
            claims = jwt.decode(id_token, keys, ALGORITHMS).claims
        except (InvalidKeyIdError, BadSignatureError):
            if self._clock_s() - asked_s < AGAIN_S:
                raise
            self._keys = None  # the provider may have other keys now
            claims = jwt.decode(id_token, self._key_set(session)[0], ALGORITHMS).claims
        client = self._settings.client_id
        jwt.JWTClaimsRegistry(
            now=int(self._now_s()),
            leeway=SKEW_S,
            iss={"essential": True, "value": self._settings.issuer},
            aud={"essential": True, "value": client},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(claims)
        several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if several else client) != client:
            raise ValueError("it is meant for another client too, and azp does not name this one")
        return claims

    def _key_set(self, session: requests.Session) -> tuple[KeySet, float]:
        """The keys of the provider, and the time of the request for them."""
        kept = self._keys
        if kept is None or self._clock_s() - kept[1] > KEPT_S:
            url = self._metadata(session).jwks_uri
            found = self._asked(
                lambda: KeySet.import_key_set(msgspec.json.decode(get_limited(session, url, ANSWERS_S, LIMIT_BYTES)))
            )
            kept = self._keys = found, self._clock_s()
        return kept

    def _caller(self, claims: Mapping[str, Any]) -> Caller:
        """The person and the highest role of the claim's values by the settings. Raises `SignInError`."""
        settings, subject = self._settings, printable(claims["sub"])[:255]
        named = claims.get(settings.name_claim)
        name = (printable(named).strip() if isinstance(named, str) else "")[:64] or subject[:64]
        values = _at(claims, settings.role_claim)
        texts = [values] if isinstance(values, str) else values if isinstance(values, list) else []
        roles = [settings.roles[each] for each in texts if isinstance(each, str) and each in settings.roles]
        if not roles:
            words = (
                f"{name} has no role here: no value of the claim {settings.role_claim} is in http.oidc.roles; ask the "
                "operator of this service"
            )
            raise SignInError(403, words, "no role", name)
        return Caller(name, max(roles, key=ROLES.index), subject)


def client_secret(settings: Oidc) -> str:
    """The secret of this client, read each time: a mounted one may change. Raises `InputError`."""
    return token_of(settings.secret_file, "http.oidc.secret_file", 1)


def _at(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by a path of names with dots."""
    found: Any = claims
    for step in (name,) if name in claims else name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _word(text: str) -> str:
    """A foreign error as a printable word."""
    return re.sub("[^A-Za-z_]", "", text)[:40] or "no reason given"
