"""Commands that know the address of a service and a token, and none of its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autopilot.cli import main
from autopilot.http.app import service_app
from autopilot.metering.amounts import AMOUNTS, KEYS, Row
from autopilot.metering.segments import HOUR, Segments
from autopilot.service.listeners import Listener
from autopilot.service.settings import Role
from tests.kits.core_world import holds, waits, world
from tests.kits.demand_world import forecast, serving
from tests.kits.http_kit import TOKENS, desk_over, published


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    """The arguments that name a service with one workload that runs, one that starts and one that is too wide."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    work = [holds("a/runs", 8, on=range(8)), waits("a/starts", 8), waits("a/wide", 64)]
    desk = desk_over(tmp_path, published(serving(world("3x8", work, 600.0), forecast({"chat": 5.0}))))
    segments, rows = Segments(tmp_path / "m", start_s=0.0), list[Row]()
    for kind in ("capacity", "idle"):
        rows.append(Row(0, HOUR, (kind, *[""] * (len(KEYS) - 1)), (HOUR, *[0] * (len(AMOUNTS) - 1))))
    segments.put(0, HOUR, rows)
    segments.close()
    listener = Listener(service_app(replace(desk, metering=tmp_path / "m")), "127.0.0.1:0", "test")
    listener.start()
    for role, token in TOKENS.items():
        (tmp_path / role.value).write_text(token)
    yield ("--server", listener.url, "--token-file")
    listener.close()


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_each_command_answers_by_the_api(
    tmp_path: Path, server: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A viewer reads decisions, explanations, forecasts and metering; who is asked stands in one line."""
    viewer = (*server, str(tmp_path / Role.VIEWER.value))
    code, said, about = call(capsys, "decisions", "--json", *viewer)
    (row,) = [json.loads(line) for line in said.splitlines()]
    assert (code, row["workload"], about) == (0, "a/starts", f"about the service at {server[1]}\n")
    for arguments, words in (
        (("decisions", "--workload", "starts"), row["id"]),
        (("explain",), "tick 0 at 10 min"),
        (("explain", "0"), "tick 0 at 10 min"),
        (("explain", row["id"]), "a/starts"),
        (("explain", "--workload", "wide"), "a/wide: pending, 64 GPUs"),
        (("forecast", "chat"), "service chat"),
        (("showback",), "1970-01-01 00:00:00 to 1970-01-01 01:00:00"),
    ):
        code, said, about = call(capsys, *arguments, *viewer)
        assert code == 0, about
        assert words in said
        assert about == f"about the service at {server[1]}\n"


def test_what_only_the_journal_has_is_refused(
    tmp_path: Path, server: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the flag, and where it is."""
    viewer = (*server, str(tmp_path / Role.VIEWER.value))
    for arguments in (
        ("explain", "--at", "2h"),
        ("explain", "7"),
        ("decisions", "--since", "2h"),
        ("forecast", "chat", "--at", "2h"),
        ("forecast", "a/runs"),
    ):
        code, said, message = call(capsys, *arguments, *viewer)
        assert (code, said) == (2, "")
        assert "in the journal, on the machine of the service" in message


def test_the_audit_log_is_for_admins(
    tmp_path: Path, server: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are copied and verified here."""
    admin = (*server, str(tmp_path / Role.ADMIN.value))
    code, said, about = call(capsys, "audit", "verify", *admin)
    assert code == 0, about
    assert "intact" in said
    assert call(capsys, "audit", "show", *admin)[0] == 0
    code, _, message = call(capsys, "audit", "show", *server, str(tmp_path / Role.APPROVER.value))
    assert code == 2
    assert "this needs admin" in message


def test_no_other_file_is_sent(tmp_path: Path, server: tuple[str, ...]) -> None:
    """The private key lies beside the log."""
    import requests

    header = {"Authorization": f"Bearer {TOKENS[Role.ADMIN]}"}
    listed = requests.get(f"{server[1]}/api/v1/records/audit", headers=header, timeout=10).json()["files"]
    assert "audit.key.pub" in listed
    for name in ("audit.key", "..%2Faudit.key", "..%2F..%2Finbox.sqlite"):
        assert requests.get(f"{server[1]}/api/v1/records/audit/{name}", headers=header, timeout=10).status_code == 404
