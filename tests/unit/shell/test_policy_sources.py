"""Sources of the policy: fixed, and a file that may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import PolicySource
from autopilot.settings import FilePolicySource, StaticPolicySource
from tests.unit.shell.test_settings import written


def test_a_static_source_gives_the_policy_it_was_made_with() -> None:
    """The same object, always."""
    policy = Policy()
    source: PolicySource = StaticPolicySource(policy)
    assert source.current() is source.current() is policy


def test_a_file_source_follows_its_file_and_keeps_the_last_good_policy(tmp_path: Path) -> None:
    """A change is applied, a bad or missing file is reported and changes nothing, a corrected one is applied."""
    path = written(tmp_path, "horizon_s: 1h")
    source = FilePolicySource(path)
    port: PolicySource = source
    first = port.current()
    assert (first.horizon_s, first.name, source.problem) == (3600.0, "mine", None)
    assert port.current() is first, "an unchanged file gives the same object"

    written(tmp_path, "horizon_s: 2h")
    second = port.current()
    assert (second.horizon_s, source.problem) == (7200.0, None)

    for bad in ("horizon_s: 2x", "", "horizon_s: [", b"\xff"):
        written(tmp_path, bad)
        for _ in range(2):
            assert port.current() is second
            assert str(path) in str(source.problem)
    path.unlink()
    assert port.current() is second
    assert "No such file" in str(source.problem)

    written(tmp_path, "# mended\nhorizon_s: 2h")
    assert port.current() is second, "another text of an equal policy is no change"
    assert source.problem is None
    written(tmp_path, "horizon_s: 3h")
    assert port.current().horizon_s == 10800.0


def test_a_file_source_starts_only_on_a_good_file(tmp_path: Path) -> None:
    """At the start there is no last good policy, so a bad file is an error."""
    with pytest.raises(InputError, match=r"mine\.yaml: horizon_s"):
        FilePolicySource(written(tmp_path, "horizon_s: no"))
