"""Runbooks: one for each alert, with queries that parse and commands that exist."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from autopilot.alerts.rules import RuleSettings, rule_groups, yaml_text
from autopilot.alerts.table import ALERTS
from autopilot.cli import main
from autopilot.metrics.table import METRICS
from autopilot.oncall.runbook import SUBJECTS, Runbook, bound, load_runbooks
from tests.kits.alert_cases import CASES
from tests.tidy.tree import ROOT

BOOKS = load_runbooks()
LABELS = dict.fromkeys(SUBJECTS, 'a "b" \\ c')


def queries(book: Runbook) -> list[str]:
    """Every query of a runbook, bound to labels that need an escape."""
    asked = [each.query for each in book.front.diagnosis] + [book.front.verification.query]
    return [query for each in asked if each and (query := bound(each, LABELS)) is not None]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """One to one, and the address of each rule leads to a file."""
    assert BOOKS.keys() == {alert.name for alert in ALERTS}
    settings = RuleSettings(runbook_base="runbooks")
    rules = [rule for group in rule_groups(settings)["groups"] for rule in group["rules"] if "alert" in rule]
    assert all((ROOT / rule["annotations"]["runbook_url"]).is_file() for rule in rules)


@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)
def test_the_text_shows_the_queries_of_the_front_matter(book: Runbook) -> None:
    """What a person runs is what the service runs."""
    shown = [" ".join(block.split()) for block in re.findall(r"```promql\n(.*?)```", book.text, re.DOTALL)]
    verified = [book.front.verification.query] if book.front.verification.query else []
    assert shown == [each.query for each in book.front.diagnosis] + verified


@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)
def test_a_runbook_asks_for_labels_that_its_alert_has(book: Runbook) -> None:
    """Each query can be bound with the labels with which the alert fires; so can its subject."""
    labels = dict.fromkeys(CASES[book.alert].labels, "x")
    asked = [each.query for each in book.front.diagnosis] + [book.front.verification.query]
    assert all(bound(query, labels) is not None for query in asked)
    assert not book.front.subject or book.front.subject in labels


def test_every_query_parses(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Promtool accepts each one, as the expression of a rule."""
    found = [query for book in BOOKS.values() for query in queries(book)]
    rules = [{"record": f"q:{number}", "expr": query} for number, query in enumerate(found)]
    (tmp_path / "rules.yaml").write_text(yaml_text({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [require_tool("promtool"), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_queries_name_metrics_of_the_table_and_recorded_series() -> None:
    """A renamed metric is found here."""
    records = {rule.get("record") for group in rule_groups(RuleSettings())["groups"] for rule in group["rules"]}
    known = {metric.full_name for metric in METRICS}
    known |= {name + end for name in known for end in ("_bucket", "_sum", "_count")}
    for book in BOOKS.values():
        for query in queries(book):
            recorded = set(re.findall(r"\b[a-z]+:gpu_autopilot_[a-z0-9_]+:[a-z0-9_]+", query))
            assert recorded <= records, query
            bare = re.sub(r"\b[a-z]+:gpu_autopilot_[a-z0-9_]+:[a-z0-9_]+", "", query)
            assert set(re.findall(r"\bgpu_autopilot_\w+", bare)) <= known, query


def test_every_option_of_a_command_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """`autopilot VERB --option` in a runbook is an option of that command."""
    asked: dict[str, set[str]] = {}
    for book in BOOKS.values():
        for verb, rest in re.findall(r"autopilot ([a-z]+(?: rollback| list)?)([^`\n|]*)", book.text):
            asked.setdefault(verb, set()).update(re.findall(r"--[a-z-]+", rest))
    assert {"explain", "decisions", "recommendations", "approve"} <= asked.keys()
    for verb, options in sorted(asked.items()):
        if not options - {"--help"}:
            continue
        with pytest.raises(SystemExit):
            main([*verb.split(), "--help"])
        said = capsys.readouterr().out
        assert not {option for option in options if option not in said}, verb
