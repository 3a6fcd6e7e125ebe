from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import Mode, Modes, Policy
from autopilot.policies.changing import changed_policy, read_changes
from autopilot.settings import load_policy, shipped_policy


def written(folder: Path, text: str) -> Path:
    """A policy file."""
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("observe", {Mode.OBSERVE}),
        ("recommend", {Mode.RECOMMEND}),
        ("approve", {Mode.APPROVE, Mode.AUTO}),
        ("autopilot", {Mode.AUTO}),
    ],
)
def test_a_shipped_policy_differs_from_the_tree_in_its_modes_alone(name: str, modes: set[Mode]) -> None:
    """Each names a mode for every action, so that a new action is decided for each of them."""
    policy = shipped_policy(name)
    assert {getattr(policy.modes, field.name) for field in fields(policy.modes)} == modes
    assert replace(policy, name="", modes=Modes()) == replace(Policy(), name="")


def test_approve_asks_before_it_stops_moves_or_shrinks_running_work() -> None:
    """And before it changes nodes; it starts and grows work by itself."""
    modes = shipped_policy("approve").modes
    alone = {field.name for field in fields(modes) if getattr(modes, field.name) == Mode.AUTO}
    assert alone == {"admit_gang", "backfill", "resize", "scale_ahead"}


@pytest.mark.parametrize("name", ["regeometry", "regeometry-node", "reclaim-idle", "elastic", "reactive", "admission"])
def test_a_policy_that_went_is_refused_with_what_to_write_instead(name: str, tmp_path: Path) -> None:
    """As a name, and as a base."""
    with pytest.raises(InputError, match=f"policy {name} is not shipped any more; write autopilot"):
        load_policy(name)
    with pytest.raises(InputError, match=f"base: {name} is not shipped any more; write autopilot"):
        load_policy(written(tmp_path, f"base: {name}"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "regeometry: {node_s: {train: 60}}",
            "regeometry.node_s: no field of a policy any more: nodes state",
        ),
        ("tenancy: {guarantee_by_queue: {a: elastic}}", "tenancy.guarantee_by_queue: no field of a policy any more"),
    ],
)
def test_a_field_that_is_stated_elsewhere_now_names_the_place(text: str, says: str, tmp_path: Path) -> None:
    """In one message."""
    with pytest.raises(InputError, match=says):
        load_policy(written(tmp_path, text))


def test_values_under_a_file_yield_to_it_and_values_over_it_do_not(tmp_path: Path) -> None:
    """Those under it replace only what comes from the shipped policy."""
    path = written(tmp_path, "base: autopilot\nhysteresis: {dwell_s: 90}")
    under = {"hysteresis.dwell_s": 0, "budget.per_node": 40, "expert.no": 1}
    with pytest.raises(InputError, match=r"expert\.no: no such field"):
        load_policy(path, under)
    policy = load_policy(path, {"hysteresis.dwell_s": 0, "budget.per_node": 40})
    assert (policy.hysteresis.dwell_s, policy.budget.per_node) == (90.0, 40)
    over = changed_policy(policy, read_changes(["hysteresis.dwell_s=2m", "budget.window_s=30m"], "--policy-set"), "x")
    assert (over.hysteresis.dwell_s, over.budget.window_s) == (120.0, 1800.0)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["modes.preempt"], '--policy-set: "modes.preempt" is not allowed; write FIELD=VALUE'),
        (["a=1", "a=2"], "--policy-set: a is given twice"),
    ],
)
def test_a_change_without_a_field_or_given_twice_is_refused(texts: list[str], says: str) -> None:
    """Each names the flag."""
    with pytest.raises(InputError, match=re.escape(says)):
        read_changes(texts, "--policy-set")
