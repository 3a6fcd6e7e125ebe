"""Requests to an API server: credentials that are renewed, refusals, answers that are cut."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import urllib3

from autopilot.core.model.errors import InputError
from autopilot.kube.access import Access, Address
from collectors.kubernetes.transport import ApiError, Transport
from tests.kits.kube_api import kubeconfig

DATE = {"Date": "Tue, 22 Sep 2026 10:00:00 GMT"}


def answer(status: int, body: bytes, **headers: str) -> urllib3.HTTPResponse:
    """An answer whose body is read later."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return urllib3.HTTPResponse(io.BytesIO(body), headers={**DATE, **named}, status=status, preload_content=False)


class Server:
    """Answers in turn, and the credentials that come with each request."""

    host = "http://server"

    def __init__(self, *answers: urllib3.HTTPResponse | Exception) -> None:
        self._answers = list(answers)
        self.tokens: list[str] = []
        self.token = "old"

    def connection(self) -> tuple[Any, dict[str, str], int]:
        return self, {"authorization": f"Bearer {self.token}"}, 1

    def renew(self, generation: int) -> None:
        assert generation == 1
        self.token = "new"

    def request(self, method: str, url: str, headers: dict[str, str], **_: Any) -> urllib3.HTTPResponse:
        assert method == "GET"
        self.tokens.append(headers["authorization"])
        found = self._answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def refusal(server: Server) -> ApiError:
    """The error of one request."""
    with pytest.raises(ApiError) as found:
        Transport(server).get("/api/v1/pods", {})
    return found.value


def test_a_token_that_was_rotated_is_read_again() -> None:
    """401 renews the credentials once, and the request is repeated with them."""
    server = Server(answer(401, b"Unauthorized"), answer(200, b"{}"))
    assert Transport(server).get("/api/v1/pods", {}) == b"{}"
    assert server.tokens == ["Bearer old", "Bearer new"]


def test_credentials_that_stay_refused_are_an_error() -> None:
    """The second 401 in a row is not repeated."""
    error = refusal(Server(answer(401, b"{}"), answer(401, b'{"message":"Unauthorized"}')))
    assert (error.status, error.message) == (401, "401 Unauthorized")


def test_both_shapes_of_429_are_understood() -> None:
    """Priority and fairness answers with text and Retry-After, an eviction with a Status."""
    error = refusal(Server(answer(429, b"Too many requests, please try again later.\n", Retry_After="1")))
    assert (error.status, error.retry_after_s) == (429, 1.0)
    assert error.message == "429 Too many requests, please try again later."


def test_no_answer_is_an_error_without_a_status() -> None:
    """A refused connection names its cause, without addresses of memory."""
    cause = ConnectionRefusedError(111, "Connection refused")
    error = refusal(Server(urllib3.exceptions.ProtocolError("Connection aborted.", cause)))
    assert error.status == 0
    assert error.message == "the API server does not answer: ConnectionRefusedError: [Errno 111] Connection refused"


def test_an_expired_list_is_an_error_of_its_own() -> None:
    """410 of a page: its continuation would mix two instants, so the caller lists again."""
    error = refusal(Server(answer(410, b'{"message":"too old","metadata":{"continue":"abc"}}')))
    assert (error.status, error.message) == (410, "410 too old")


def test_the_clock_of_the_server_is_compared_with_ours() -> None:
    """Every answer states the server's time."""
    transport = Transport(Server(answer(200, b"{}")), wall_s=lambda: 1_790_071_200.0 - 3600.0)
    transport.get("/version", {})
    assert transport.skew_s == 3600.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "there is no such file"),
        ("not: [yaml", "it is not a kubeconfig"),
        ("apiVersion: v1\nkind: Config\n", "it cannot be used"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_an_input_error(tmp_path: Path, text: str | None, says: str) -> None:
    """The message names the file."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(InputError, match=f"--kubeconfig {path}: {says}"):
        Access(Address(path))


def test_an_unknown_context_is_an_input_error(tmp_path: Path) -> None:
    """The message has the name."""
    path = tmp_path / "config"
    path.write_text(kubeconfig("http://server"), "utf-8")
    with pytest.raises(InputError, match="nowhere"):
        Access(Address(path, "nowhere"))


def test_a_process_outside_a_pod_has_no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """--in-cluster says so."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="give --kubeconfig FILE"):
        Access(Address(in_cluster=True))


def test_a_token_in_a_file_is_read_again_on_renewal(tmp_path: Path) -> None:
    """A rotated token file counts from the next renewal on; a second thread does not renew again."""
    token, path = tmp_path / "token", tmp_path / "config"
    token.write_text("one", "utf-8")
    path.write_text(kubeconfig("http://server").replace("token: t", f"tokenFile: {token}"), "utf-8")
    access = Access(Address(path))
    _, headers, generation = access.connection()
    assert headers["authorization"] == "Bearer one"
    token.write_text("two", "utf-8")
    access.renew(generation)
    access.renew(generation)
    assert access.connection()[1]["authorization"] == "Bearer two"
    assert access.generation == generation + 1
