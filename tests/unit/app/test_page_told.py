"""What `run` and `playground` print when they answer."""

from __future__ import annotations

from pathlib import Path

from autopilot.operate.run import page_words
from autopilot.service.settings import ClusterRoles, Role, Settings, Token
from autopilot.service.state_folder import Places

OWN = Places(Path("/state"), Path("/state"))
URL = "http://127.0.0.1:9470"


def test_the_page_and_the_file_with_its_own_token() -> None:
    """Without tokens in the settings the service makes one."""
    assert page_words(URL, Settings(), OWN) == f"page: {URL}, sign in with the token in /state/admin.token"


def test_the_tokens_of_the_settings_that_may_sign_in() -> None:
    """Not the one that only delivers alerts; tokens of the cluster where it gives roles."""
    ada = Token(name="ada", role=Role.ADMIN, file=Path("/etc/ada"))
    alerts = Token(name="am", role=Role.ALERTS, file=Path("/etc/am"))
    http = Settings().http.model_copy(update={"tokens": (ada, alerts), "cluster_roles": ClusterRoles()})
    words = page_words(URL, Settings().model_copy(update={"http": http}), OWN)
    assert words.startswith(f"page: {URL}, sign in with the token in /etc/ada, or a token of the cluster")
