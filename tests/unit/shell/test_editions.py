"""An installed policy keeps its modes after an upgrade."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from autopilot.core.model.memory import ControllerMemory
from autopilot.core.model.modes import LATEST_EDITION, Mode, Modes
from autopilot.policies.editions import BEFORE, HeldBack, as_of
from autopilot.settings import FilePolicySource, StaticPolicySource, shipped_policy

AUTOPILOT = shipped_policy("autopilot")


def test_each_edition_states_actions_that_exist_and_the_latest_changes_nothing() -> None:
    """A memory without an edition is of the first one."""
    known = {field.name for field in fields(Modes)}
    assert set(BEFORE) == set(range(2, LATEST_EDITION + 1))
    assert all(set(actions) <= known for actions in BEFORE.values())
    assert as_of(AUTOPILOT, LATEST_EDITION) is AUTOPILOT
    assert ControllerMemory().edition == 1


@pytest.mark.parametrize("name", ["observe", "recommend"])
def test_a_policy_that_acts_nowhere_stays_as_it_is(name: str) -> None:
    """What only recommends may recommend more."""
    assert as_of(shipped_policy(name), 1) is shipped_policy(name)


def test_an_installed_autopilot_goes_no_further_than_before() -> None:
    """Actions that it did not take stay off; those that it took stay on."""
    source = StaticPolicySource(AUTOPILOT)
    source.installed(1)
    now = source.current().modes
    assert {now.regeometry, now.suspend_idle, now.defragment_ahead} == {Mode.OFF}
    assert (now.enforce_limit, now.preempt, now.admit_gang) == (Mode.RECOMMEND, Mode.AUTO, Mode.AUTO)


@pytest.mark.parametrize(
    ("text", "regeometry", "suspend"),
    [
        ("base: autopilot", Mode.OFF, Mode.OFF),
        ("base: autopilot\nmodes: {regeometry: auto}", Mode.AUTO, Mode.OFF),
        (f"base: autopilot\nedition: {LATEST_EDITION}", Mode.AUTO, Mode.AUTO),
        ("base: approve", Mode.OFF, Mode.OFF),
    ],
)
def test_a_file_names_a_mode_or_the_edition_to_go_further(
    text: str, regeometry: Mode, suspend: Mode, tmp_path: Path
) -> None:
    """A fresh installation has the latest edition."""
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    source = FilePolicySource(path)
    fresh = source.current()
    source.installed(LATEST_EDITION)
    assert source.current() is fresh
    source.installed(1)
    modes = source.current().modes
    assert (modes.regeometry, modes.suspend_idle) == (regeometry, suspend)
    source.installed(LATEST_EDITION)
    assert replace(source.current(), edition=0) == replace(fresh, edition=0)


def test_the_service_says_what_an_upgrade_holds_back(tmp_path: Path) -> None:
    """Which actions, at which mode, and what adopts them; nothing once the policy says that."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: autopilot\nmodes: {regeometry: auto}", encoding="utf-8")
    for source in (FilePolicySource(path), StaticPolicySource(AUTOPILOT)):
        told = HeldBack(source)
        assert told.words() == ""
        source.installed(1)
        assert "suspend_idle (off)" in told.words()
        assert "enforce_limit (recommend)" in told.words()
        assert ("regeometry" in told.words()) == isinstance(source, StaticPolicySource)
        assert f"write `edition: {LATEST_EDITION}` in the policy" in told.words()
    source = FilePolicySource(path)
    source.installed(1)
    told = HeldBack(source)
    assert told.words() != ""
    path.write_text(f"base: autopilot\nedition: {LATEST_EDITION}", encoding="utf-8")
    assert told.words() == ""
