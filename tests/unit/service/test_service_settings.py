"""Settings from file, environment and flags; every error names source, field, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from autopilot.core.model.errors import InputError
from autopilot.service.settings import Kubernetes, Role, Settings
from autopilot.service.settings_file import fields_of, load_settings
from autopilot.service.wiring import wiring_lines


def _written(folder: Path, text: str) -> Path:
    path = folder / "service.yaml"
    path.write_text(text, "utf-8")
    return path


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_AUTOPILOT_KILL", raising=False)


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field by field: what one source does not set comes from the next."""
    path = _written(
        tmp_path,
        """
        policy: autopilot
        loop: {interval_s: 10s, least_s: 2}
        http: {listen: "127.0.0.1:1000", tokens: [{name: ada, role: approver, file: /run/ada}]}
        """,
    )
    monkeypatch.setenv("GPU_AUTOPILOT_LOOP__INTERVAL_S", "20s")
    monkeypatch.setenv("GPU_AUTOPILOT_HTTP__LISTEN", "127.0.0.1:2000")
    found = load_settings(path, {"http": {"listen": "127.0.0.1:3000"}})
    assert (found.policy, found.loop.interval_s, found.loop.least_s) == ("autopilot", 20.0, 2.0)
    assert found.http.listen == "127.0.0.1:3000"
    assert found.http.tokens[0].role == Role.APPROVER
    assert load_settings(None).http.listen == "127.0.0.1:2000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("polcy: x", "service.yaml: polcy: no such setting; did you mean policy\\?"),
        ("http: {listn: x}", "service.yaml: http.listn: no such setting; did you mean listen\\?"),
        ("loop: {interval_s: 0}", "service.yaml: loop.interval_s: 0 is not allowed: Input should be greater than 0"),
        ("loop: {interval_s: soon}", "service.yaml: loop.interval_s: 'soon' is not allowed"),
        ("http: {listen: everywhere}", "http.listen: 'everywhere' is not allowed: .*write host:port"),
        ("http: {tokens: [{name: a, role: boss, file: x}]}", r"http.tokens\[0\].role: 'boss' is not allowed"),
        ("http: {tokens: [{name: a, role: admn, file: x}]}", "did you mean admin"),
        ("http: {tokens: [{role: admin, file: x}]}", r"http.tokens\[0\].name: is missing \(who it belongs to"),
        ("collectors: {prometheus: {url: 'ftp://x'}}", "collectors.prometheus.url: 'ftp://x' is not allowed"),
        ("simulation: {speed: 0}", "simulation.speed: 0 is not allowed"),
        ("- a", r"service.yaml: \['a'\] is not allowed; settings are a mapping"),
        ("a: b: c", "service.yaml line 1, column 5: invalid YAML"),
        ("policy: [a", "invalid YAML"),
    ],
)
def test_a_wrong_field_is_named_with_value_and_fix(tmp_path: Path, text: str, said: str) -> None:
    """One line for each."""
    with pytest.raises(InputError, match=said):
        load_settings(_written(tmp_path, text))


def test_every_wrong_field_is_reported(tmp_path: Path) -> None:
    """Not only the first."""
    with pytest.raises(InputError) as caught:
        load_settings(_written(tmp_path, "loop: {interval_s: -1}\nmetrics: {open: 7}\nlog: {level: loud}"))
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "loop.interval_s",
        "metrics.open",
        "log.level",
    ]


def test_errors_of_the_environment_and_of_flags_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that no field has is an error too: a typing error must not be ignored."""
    with pytest.raises(InputError, match=r"command line: http.listen: 'x' is not allowed"):
        load_settings(None, {"http": {"listen": "x"}})
    monkeypatch.setenv("GPU_AUTOPILOT_LOOP__INTERVAL_S", "0")
    with pytest.raises(InputError, match=r"environment GPU_AUTOPILOT_LOOP__INTERVAL_S: loop.interval_s: 0.0"):
        load_settings(None)
    monkeypatch.delenv("GPU_AUTOPILOT_LOOP__INTERVAL_S")
    monkeypatch.setenv("GPU_AUTOPILOT_COLLECTORS", "{not json")
    with pytest.raises(InputError, match="lists and mappings are given as JSON"):
        load_settings(None)
    monkeypatch.delenv("GPU_AUTOPILOT_COLLECTORS")
    monkeypatch.setenv("GPU_AUTOPILOT_POLCY", "x")
    with pytest.raises(InputError, match="environment GPU_AUTOPILOT_POLCY: no such setting; did you mean POLICY"):
        load_settings(None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, no text, and a folder."""
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(InputError, match=f"{path}: the settings cannot be read"):
            load_settings(path)
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"policy: \xff")
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 8\); save it as UTF-8"):
        load_settings(path)


def test_every_setting_has_a_meaning() -> None:
    """The reference and the error messages use it."""
    assert [path for path, field in fields_of() if not field.description] == []


def test_the_check_names_the_levers_that_may_be_used() -> None:
    """Only those of the kinds that are allowed; an action that needs another kind is named as recommended."""
    real = Kubernetes(act=True, act_kinds=("admit",))
    lines = wiring_lines(Settings(policy="autopilot", kubernetes=real))
    levers = [line.split()[1] for line in lines if line.startswith("lever ")]
    assert "admission-check:" in levers
    assert "evict-pods:" not in levers
    (without,) = [line for line in lines if line.startswith("no lever")]
    assert "preempt" in without
    assert "admit_gang" not in without
    assert not any(line.startswith("lever") for line in wiring_lines(Settings(kubernetes=Kubernetes())))
    with pytest.raises(ValidationError, match="write one of admit"):
        Kubernetes(act_kinds=("admits",))


def test_the_check_does_not_guess_at_a_policy_in_the_cluster() -> None:
    """It is not read before the service runs, so every lever that some policy may use is named."""
    real = Kubernetes(act=True, act_kinds=("admit",), policy_object="fleet")
    lines = wiring_lines(Settings(kubernetes=real))
    assert any(line.startswith("lever        admission-check:") for line in lines)
    assert not any("no mode of the policy" in line for line in lines)


def test_the_check_names_an_unknown_policy() -> None:
    """`--check` loads the policy."""
    assert any("by itself: nothing" in line for line in wiring_lines(Settings()))
    with pytest.raises(InputError, match=r"unknown policy .*did you mean recommend"):
        wiring_lines(Settings(policy="recomend"))
