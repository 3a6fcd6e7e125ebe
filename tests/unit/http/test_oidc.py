"""Sign-in through an OpenID Connect provider: the whole way of a browser, and what must not be believed."""

from __future__ import annotations

import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from fastapi.testclient import TestClient
from joserfc import jwt
from joserfc.jwk import RSAKey

from autopilot.core.model.errors import InputError
from autopilot.http import oidc
from autopilot.http.desk import Desk
from autopilot.http.sessions import COOKIE, Sessions
from autopilot.records.audit.entry import Kind, parse_line
from autopilot.service.settings import Http, Oidc, Role
from tests.kits.core_world import world
from tests.kits.http_kit import TOKENS, desk_over, published
from tests.kits.oidc_kit import GROUPS, PUBLIC, TestProvider, browser, client_of, key, provider


class Corp:
    """A desk whose people sign in at a provider."""

    def __init__(self, folder: Path, given: TestProvider, **more: Any) -> None:
        self.now_s, self.given = 1000.0, given
        made = client_of(folder, given.issuer, lambda: self.now_s, **more)
        desk = desk_over(folder, published(world()))
        self.desk: Desk = replace(desk, provider=made, sessions=Sessions(lambda: self.now_s))
        self.browser = browser(self.desk)

    def begin(self) -> str:
        """The address at the provider that the browser is sent to."""
        answer = self.browser.get(oidc.PATH)
        assert answer.status_code == 303, answer.text
        return answer.headers["Location"]

    def back(self, url: str | None = None) -> Any:
        """Sign in at the provider, and come back."""
        sent = requests.get(url or self.begin(), allow_redirects=False, timeout=5).headers["Location"]
        assert sent.startswith(PUBLIC + oidc.CALLBACK)
        return self.browser.get(sent)

    def events(self) -> list[tuple[Kind, str, str, dict[str, Any]]]:
        """Kind, who, role and facts of the audit log."""
        lines = [line for file in sorted(self.desk.record.folder.glob("*")) for line in file.read_bytes().splitlines()]
        found = [parse_line(line + b"\n").event for line in lines]
        return [(each.kind, each.who, each.role, dict(each.facts)) for each in found]


@pytest.fixture
def given() -> Iterator[TestProvider]:
    """The provider."""
    with provider() as made:
        yield made


@pytest.fixture
def corp(tmp_path: Path, given: TestProvider) -> Corp:
    """A desk whose people sign in there."""
    return Corp(tmp_path, given)


def _refused(answer: Any, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert COOKIE not in answer.headers.get("set-cookie", "")


def test_a_person_signs_in_and_acts_under_name_and_subject(corp: Corp) -> None:
    """Code flow with PKCE, state and nonce; the highest mapped role; the audit log has name and subject."""
    assert corp.browser.get("/api/v1/session").json() == {
        "signed_in": False,
        "provider": {"name": "Corp", "url": PUBLIC + oidc.PATH},
    }
    url = corp.begin()
    query = parse_qs(urlsplit(url).query)
    assert (query["response_type"], query["code_challenge_method"]) == (["code"], ["S256"])
    assert len(query["state"][0]) == len(query["nonce"][0]) == len(query["code_challenge"][0]) == 43
    answer = corp.back(url)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    session = corp.browser.get("/api/v1/session").json()
    assert (session["name"], session["role"]) == ("ada", "approver")
    sent = {"Origin": PUBLIC, "X-CSRF-Token": session["csrf"]}
    assert corp.browser.post("/api/v1/pause").status_code == 403  # CSRF as for tokens
    assert corp.browser.post("/api/v1/pause", headers=sent).status_code == 200
    assert corp.browser.post("/api/v1/resume", headers=sent).status_code == 403  # an approver may not
    assert (Kind.SIGN_IN, "ada", "approver", {"oidc_subject": "00u1"}) in corp.events()
    paused = [facts for kind, who, _, facts in corp.events() if (kind, who) == (Kind.COMMAND, "ada")]
    assert paused == [{"command": "pause", "oidc_subject": "00u1"}]


def test_the_cookies_are_not_for_scripts_and_end(corp: Corp) -> None:
    """HttpOnly, not sent by other sites; the session ends after its time, or by signing out."""
    begun = corp.browser.get(oidc.PATH).headers["set-cookie"]
    assert all(part in begun for part in ("HttpOnly", "SameSite=lax", f"Path={oidc.PATH}", "Max-Age=600"))
    made = corp.back().headers["set-cookie"]
    assert all(part in made for part in (f"{COOKIE}=", "HttpOnly", "SameSite=strict", "Max-Age=14400"))
    assert corp.browser.get("/api/v1/state").status_code == 200
    corp.now_s += 4 * 3600
    assert corp.browser.get("/api/v1/state").status_code == 401
    corp.back()
    csrf = corp.browser.get("/api/v1/session").json()["csrf"]
    out = corp.browser.delete("/api/v1/session", headers={"Origin": PUBLIC, "X-CSRF-Token": csrf})
    assert out.json()["signed_in"] is False
    assert corp.browser.get("/api/v1/state").status_code == 401


def test_behind_https_the_cookies_are_secure(tmp_path: Path, given: TestProvider) -> None:
    """The public address says how browsers come."""
    made = oidc.Provider(client_of(tmp_path, given.issuer, time.monotonic)._settings, "https://autopilot.corp.net")
    assert made.secure
    assert made.begin_url == f"https://autopilot.corp.net{oidc.PATH}"


def test_a_return_that_this_browser_did_not_begin_is_refused(corp: Corp) -> None:
    """Another state, no cookie, another browser's cookie, and a return after ten minutes; the code is not sent on."""
    url = corp.begin()
    sent = requests.get(url, allow_redirects=False, timeout=5).headers["Location"]
    _refused(corp.browser.get(sent.replace("state=", "state=x")), 400, "this browser did not begin it")
    _refused(corp.browser.get(sent + "&state=%C3%A9"), 400, "this browser did not begin it")
    _refused(browser(corp.desk).get(sent), 400, "this browser did not begin it")
    other = browser(corp.desk)
    other.get(oidc.PATH)
    _refused(other.get(sent), 400, "this browser did not begin it")
    corp.now_s += 601
    _refused(corp.browser.get(sent), 400, "longer than 10 minutes")
    assert "/token" not in corp.given.asked


def test_a_code_is_good_once(corp: Corp) -> None:
    """The second return with it is refused by the provider, and by us without the cookie."""
    sent = requests.get(corp.begin(), allow_redirects=False, timeout=5).headers["Location"]
    kept = corp.browser.cookies[oidc.COOKIE]
    assert corp.browser.get(sent).status_code == 303
    _refused(corp.browser.get(sent), 400, "this browser did not begin it")
    again = browser(corp.desk).get(sent, headers={"Cookie": f"{oidc.COOKIE}={kept}"})
    _refused(again, 401, "Corp refused the code (invalid_grant)")


def test_an_id_token_of_another_purpose_is_refused(corp: Corp) -> None:
    """Nonce, expiry, audience, issuer and subject each count; no session begins."""
    now_s, both = int(time.time()), ["autopilot", "another-client"]
    for changed, why in (
        ({"nonce": "of-another-sign-in"}, "invalid_claim"),
        ({"nonce": None}, "missing_claim"),
        ({"iat": now_s - 900, "exp": now_s - 120}, "expired_token"),
        ({"exp": None}, "missing_claim"),
        ({"iat": now_s + 900, "exp": now_s + 9000}, "invalid_claim"),
        ({"nbf": now_s + 900}, "invalid_claim"),
        ({"aud": "another-client"}, "invalid_claim"),
        ({"aud": both}, "ValueError"),
        ({"aud": both, "azp": "another-client"}, "ValueError"),
        ({"iss": "http://127.0.0.1:1"}, "invalid_claim"),
        ({"sub": None}, "missing_claim"),
        ({"sub": 7}, "invalid_claim"),
    ):
        corp.given.changed = dict(changed)
        _refused(corp.back(), 401, f"the ID token of Corp cannot be trusted ({why})")
        assert (Kind.DENIED, f"ID token: {why}") in [(kind, facts.get("reason")) for kind, _, _, facts in corp.events()]


def test_clocks_may_differ_by_a_minute(corp: Corp) -> None:
    """A token that ended half a minute ago, or is issued in half a minute, passes."""
    now_s = int(time.time())
    for changed in ({"exp": now_s - 30}, {"iat": now_s + 30}):
        corp.given.changed = dict(changed)
        assert corp.back().status_code == 303


def _by(signer: RSAKey, **header: Any) -> Callable[[dict[str, Any]], str]:
    return lambda claims: jwt.encode({"alg": "RS256", **header}, claims, signer)


def _by_hand(alg: str, secret: bytes) -> Callable[[dict[str, Any]], str]:
    """Without a key pair; the library refuses to make such tokens."""

    def sign(claims: dict[str, Any]) -> str:
        head, body = (_base64(json.dumps(each).encode()) for each in ({"alg": alg, "kid": "k1"}, claims))
        return f"{head}.{body}.{_base64(hmac.digest(secret, f'{head}.{body}'.encode(), 'sha256')) if secret else ''}"

    return sign


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def test_an_id_token_that_the_provider_did_not_sign_is_refused(corp: Corp) -> None:
    """No signature, a shared secret, a key that the token brings along, and no token at all."""
    right, own = corp.given.sign, key("k1", 1)
    for sign in (
        _by_hand("none", b""),
        _by_hand("HS256", corp.given.keys[0].as_pem(private=False)),
        _by(own, kid="k1", jwk=own.as_dict(private=False)),
        _by(own, kid="k9"),
        lambda _: "é.b",
        lambda claims: right(claims)[:-20],
    ):
        corp.given.sign = sign
        _refused(corp.back(), 401, "cannot be trusted")


def test_a_rotated_key_is_fetched_and_an_unknown_one_does_not_flood(corp: Corp) -> None:
    """A token of a new key makes us ask for the keys once, at most each ten seconds; a withdrawn key ends to count."""
    assert corp.back().status_code == 303
    old = corp.given.keys[0]
    corp.given.keys = [key("k2")]
    corp.now_s += 11
    assert corp.back().status_code == 303
    asked = corp.given.asked.count("/keys")
    corp.given.sign = lambda claims: jwt.encode({"alg": "RS256", "kid": "k1"}, claims, old)
    for _ in range(5):
        _refused(corp.back(), 401, "cannot be trusted")
    assert corp.given.asked.count("/keys") == asked == 2


def test_a_changed_role_counts_from_the_next_sign_in(corp: Corp) -> None:
    """More, less, none: the session before it is replaced, and without a role none begins."""
    roles = []
    for groups in (["ml"], ["gpu-admins", "ml"], "gpu-oncall"):
        corp.given.person["groups"] = groups
        corp.back()
        roles.append(corp.browser.get("/api/v1/session").json()["role"])
    assert roles == ["viewer", "admin", "approver"]


def test_a_person_without_a_role_gets_one_message(corp: Corp) -> None:
    """It names the person, the claim and the operator."""
    for groups in (["people"], [], None, {"gpu-admins": True}, [["gpu-admins"], 7], "GPU-ADMINS", 3):
        corp.given.person["groups"] = groups
        _refused(corp.back(), 403, "ada has no role here: no value of the claim groups is in http.oidc.roles; ask the")
    assert (Kind.DENIED, "ada") in [(kind, who) for kind, who, _, _ in corp.events()]


@pytest.mark.parametrize(
    ("claim", "person"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["gpu-admins"]}}),
        ("https://corp.net/roles", {"https://corp.net/roles": ["gpu-admins"]}),
    ],
)
def test_a_claim_is_named_by_name_or_path(
    tmp_path: Path, given: TestProvider, claim: str, person: dict[str, Any]
) -> None:
    """Keycloak nests roles; names with dots are whole names first. A person without a name has the subject."""
    given.person = {"sub": "00u1", **person}
    corp = Corp(tmp_path, given, role_claim=claim)
    corp.back()
    session = corp.browser.get("/api/v1/session").json()
    assert (session["name"], session["role"]) == ("00u1", "admin")


def test_a_name_of_others_cannot_act_on_a_terminal(corp: Corp) -> None:
    """Control characters are replaced, and a long name is cut; a page of refusal shows no markup."""
    corp.given.person["preferred_username"] = "ad\x1b[2Ja" + "x" * 100
    corp.back()
    assert corp.browser.get("/api/v1/session").json()["name"] == "ad?[2Ja" + "x" * 57
    corp.given.person |= {"preferred_username": "<script>alert(1)</script>", "groups": []}
    answer = corp.back()
    _refused(answer, 403, "&lt;script&gt;")
    assert "<script" not in answer.text


def test_a_provider_that_is_down_leaves_tokens(corp: Corp) -> None:
    """One clear message, at the start and at the return; a token signs in all the same."""
    corp.given.down = True
    words = "Corp does not answer as it should; sign in with a token, or try again later"
    _refused(corp.browser.get(oidc.PATH), 503, words)
    sent = {"token": TOKENS[Role.VIEWER]}
    assert corp.browser.post("/api/v1/session", json=sent, headers={"Origin": PUBLIC}).status_code == 200
    corp.given.down = False
    url = requests.get(corp.begin(), allow_redirects=False, timeout=5).headers["Location"]
    corp.given.down = True
    _refused(corp.browser.get(url), 503, words)


def test_metadata_of_another_issuer_or_scheme_is_not_used(corp: Corp) -> None:
    """The browser is not redirected."""
    for metadata in (
        {"issuer": "http://127.0.0.1:2"},
        {"token_endpoint": "ftp://127.0.0.1/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": 7},
    ):
        corp.given.metadata = dict(metadata)
        answer = corp.browser.get(oidc.PATH)
        _refused(answer, 503, "does not answer as it should")
        assert "Location" not in answer.headers


def test_a_refusal_of_the_provider_is_said_in_a_word(corp: Corp) -> None:
    """Its error is shown as letters alone, and only to the browser that began."""
    state = parse_qs(urlsplit(corp.begin()).query)["state"][0]
    answer = corp.browser.get(oidc.CALLBACK, params={"state": state, "error": "access_denied<b>\r\nX: y"})
    _refused(answer, 403, "Corp refused it (access_deniedbXy)")


def test_a_wrong_client_secret_is_named(tmp_path: Path, given: TestProvider) -> None:
    """The provider says which."""
    _refused(Corp(tmp_path, given, wrong_secret=True).back(), 401, "Corp refused the code (invalid_client)")


def test_a_sign_in_leads_to_the_page_and_nowhere_else(corp: Corp) -> None:
    """Whatever the queries and headers say: to the provider of the settings, and then to `/`."""
    more = "next=//evil.example&redirect_uri=https://evil.example&return_to=/%5Cevil&state=x"
    hostile = {"Host": "evil.example", "X-Forwarded-Host": "evil.example", "Referer": "https://evil.example/"}
    answer = corp.browser.get(f"{oidc.PATH}?{more}", headers=hostile)
    url = answer.headers["Location"]
    assert url.startswith(f"{corp.given.issuer}/authorize?")
    assert parse_qs(urlsplit(url).query)["redirect_uri"] == [PUBLIC + oidc.CALLBACK]
    sent = requests.get(url, allow_redirects=False, timeout=5).headers["Location"]
    cookie = answer.headers["set-cookie"].partition(";")[0]
    back = browser(corp.desk).get(
        f"{oidc.CALLBACK}?{more}&{urlsplit(sent).query}", headers={**hostile, "Cookie": cookie}
    )
    assert (back.status_code, back.headers["Location"]) == (303, "/")


def test_few_requests_wait_for_a_slow_provider(corp: Corp) -> None:
    """Where as many wait as may, the next one is refused at once, and the API answers."""
    made = corp.desk.provider
    assert made is not None
    for _ in range(oidc.MOST_AT_ONCE):
        made._turns.acquire()
    _refused(corp.browser.get(oidc.PATH), 503, "Corp is slow now")
    assert corp.browser.get("/healthz").status_code == 200


def test_without_a_provider_there_is_no_such_sign_in(tmp_path: Path) -> None:
    """404 with what to do."""
    answer = TestClient(browser(desk_over(tmp_path)).app).get(oidc.PATH)
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "no OpenID Connect provider is set (http.oidc); sign in with a token",
    )


_RIGHT = {"issuer": "https://id.corp.net/", "client_id": "a", "secret_file": Path("s"), "roles": GROUPS}


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("issuer", "http://id.corp.net", "write https://"),
        ("roles", {"x": Role.ALERTS}, "alerts is no role of a person"),
        ("roles", {}, "at least 1 item"),
        ("scopes", ("profile",), "add openid"),
        ("session_s", 13 * 3600.0, "less than or equal to 43200"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(field: str, value: Any, why: str) -> None:
    """Each with what is allowed; an issuer keeps its slash."""
    assert Oidc(**_RIGHT).issuer == "https://id.corp.net/"
    with pytest.raises(ValueError, match=why):
        Oidc(**_RIGHT | {field: value})


@pytest.mark.parametrize(
    "url", ["http://autopilot.corp.net", "https://a.net/path", "https://u@a.net", "https://a.net?x"]
)
def test_the_public_address_is_an_origin_by_https(url: str) -> None:
    """Loopback may be plain; a provider needs it."""
    assert Http(public_url="http://127.0.0.1:9470/").public_url == "http://127.0.0.1:9470"
    with pytest.raises(ValueError, match="write"):
        Http(public_url=url)
    with pytest.raises(ValueError, match="oidc needs public_url"):
        Http(oidc=Oidc(**_RIGHT))


def test_a_missing_client_secret_is_said_at_the_start(tmp_path: Path) -> None:
    """The setting and the file."""
    with pytest.raises(InputError, match=r"http\.oidc\.secret_file: .*absent"):
        oidc.Provider(Oidc(**_RIGHT | {"secret_file": tmp_path / "absent"}), PUBLIC)
