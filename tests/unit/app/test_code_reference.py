"""The table of reason codes in docs/output.md, and the policy fields that it names."""

from __future__ import annotations

from autopilot.core.model.records import Code
from autopilot.policies.policy_tree import policy_fields
from autopilot.report.advice import FIELD_OF
from scripts.generate_code_reference import TARGET, main, table


def test_the_table_of_codes_is_that_of_the_code() -> None:
    """Every code has a row; a code that is added or changed is written by the script."""
    assert main(["--check"]) == 0
    assert table() in TARGET.read_text(encoding="utf-8")
    assert all(f"| `{code.value}` |" in table() for code in Code)


def test_every_named_field_is_a_field_of_the_policy() -> None:
    """Advice names nothing that a policy file would refuse."""
    assert set(FIELD_OF.values()) <= {field.path for field in policy_fields()}
