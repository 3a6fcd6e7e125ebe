"""Every case of the shared examples, where they are, and of our own files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.cases import Entry, read_file
from tests.conformance.judge import judge
from tests.conftest import ROOT, find_shared_data

OWN = Path(__file__).parent / "own.json"
RULES = Path(__file__).parent / "own_rules.json"
SHARED = (find_shared_data() or ROOT.parent / "shared" / "data").parent / "conformance" / "examples.json"

FILES = [path for path in (OWN, RULES, SHARED) if path.is_file()]
CASES = [pytest.param(entry, path.stem, id=entry.id) for path in FILES for entry in read_file(path)]


@pytest.mark.parametrize(("entry", "file"), CASES)
def test_the_decision_is_the_expected_one(entry: Entry, file: str, ran_on: Callable[[str], None]) -> None:
    """The planner decides a case as the case says."""
    ran_on(f"decision cases: {file}")
    judgement = judge(entry)
    assert not judgement.failures, judgement.line


def test_every_action_and_kind_is_met_by_our_own_cases() -> None:
    """Without the shared file no action goes untested."""
    cases = [entry.case for entry in read_file(OWN) if entry.case]
    assert {case.action for case in cases} == {
        "allocate",
        "preempt",
        "reclaim",
        "consolidate",
        "stale_gang",
        "admit",
        "elastic_quota",
        "mig_replan",
        "mig_fit",
    }
    assert {case.kind for case in cases} == {"schedule", "quota", "mig_replan", "mig_fit"}
