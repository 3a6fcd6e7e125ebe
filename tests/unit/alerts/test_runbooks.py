"""Runbooks: one for each alert, with a front matter that a program can follow and commands that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autopilot.alerts.rules import RuleSettings, rule_groups, yaml_text
from autopilot.alerts.runbooks import Runbook, filled, labels_of, load_runbooks, read_runbook
from autopilot.alerts.table import ALERTS
from autopilot.core.model.errors import InputError
from autopilot.metrics.table import METRICS
from tests.tidy.tree import ROOT

FOLDER = ROOT / "runbooks"
BOOKS = load_runbooks(FOLDER)
GOOD = (FOLDER / "GPUAutopilotClusterFragmented.md").read_text(encoding="utf-8")


def queries(book: Runbook) -> list[str]:
    """Every query of a runbook, its labels replaced by one that needs an escape."""
    labels = dict.fromkeys(labels_of(next(a for a in ALERTS if a.name == book.matter.alert)), 'a "b" \\ c')
    return [filled(each.query, labels) for each in book.matter.diagnosis] + [
        filled(book.matter.verification.query, labels)
    ]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """One to one, and the address of each rule leads to a file."""
    assert BOOKS.keys() == {alert.name for alert in ALERTS}
    settings = RuleSettings(runbook_base="runbooks")
    rules = [rule for group in rule_groups(settings)["groups"] for rule in group["rules"] if "alert" in rule]
    assert all((ROOT / rule["annotations"]["runbook_url"]).is_file() for rule in rules)


@pytest.mark.parametrize("book", BOOKS.values(), ids=BOOKS)
def test_the_text_shows_the_queries_of_the_front_matter(book: Runbook) -> None:
    """What a person runs is what a program runs; the title is the name."""
    text = book.path.read_text(encoding="utf-8")
    shown = [" ".join(block.split()) for block in re.findall(r"```promql\n(.*?)```", text, re.DOTALL)]
    assert shown == [each.query for each in book.matter.diagnosis] + [book.matter.verification.query]
    assert f"\n# {book.matter.alert}\n" in text
    assert "kubectl" not in text, "this version talks to no Kubernetes"


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


def test_every_option_of_a_command_exists() -> None:
    """`autopilot VERB --option` in a runbook is an option of that command."""
    asked: dict[str, set[str]] = {}
    for book in BOOKS.values():
        text = book.path.read_text(encoding="utf-8")
        for verb, rest in re.findall(r"autopilot ([a-z]+(?: rollback| list)?)([^`\n|]*)", text):
            asked.setdefault(verb, set()).update(re.findall(r"--[a-z-]+", rest))
    assert {"explain", "decisions", "recommendations", "approve"} <= asked.keys()
    for verb, options in sorted(asked.items()):
        if not options - {"--help"}:
            continue
        done = subprocess.run(
            [sys.executable, "-c", "from autopilot.cli import main; main()", *verb.split(), "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not {option for option in options if option not in done.stdout}, verb


def test_labels_are_escaped() -> None:
    """A label value cannot end its string: it stays one matcher."""
    assert filled('x{pool="$pool"}', {"pool": 'a"} or y{b="\\\n'}) == 'x{pool="a\\"} or y{b=\\"\\\\\\n"}'
    assert filled('x{pool="$pool"}', {}) == 'x{pool=""}'


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("---\nalert", "alert", ":1: there is no front matter"),
        ("severity: warning", "severity: [", "is not YAML"),
        ("severity: warning", "severity: critical", "severity: 'critical'"),
        ("alert: GPUAutopilotClusterFragmented", "alert: GPUAutopilotOther", "must be the name of the file"),
        ("action: defragment", "action: reboot", "'reboot' is no action"),
        ("- hysteresis", "- courage", "guard 'courage' does not exist"),
        ("- gpu_autopilot_stranded_gpus", "- gpu_autopilot_luck", "metric 'gpu_autopilot_luck' does not exist"),
        ('pool="$pool"', 'pool="$node"', "$node: the alert has no such label"),
        ("## Impact", "## Cause", "the sections are"),
        ("  good: empty", "  good: perhaps", "verification.good"),
        ("severity: warning", "severity: warning\nmode: auto", "mode: Extra inputs are not permitted"),
        ("- action: defragment", "- action: defragment\n  command: rm -rf", "command: Extra inputs are not permitted"),
        ("- action: defragment", "- action: defragment\n  victims: [a]", "victims: Extra inputs are not permitted"),
        ("- action: defragment", "- action: defragment\n  waive: [budget]", "waive: Extra inputs are not permitted"),
    ],
)
def test_a_broken_runbook_is_refused_with_its_file(old: str, new: str, message: str, tmp_path: Path) -> None:
    """The first problem, with file and line or field. A mode, victims, waived guards and commands have no place."""
    assert old in GOOD
    path = tmp_path / "GPUAutopilotClusterFragmented.md"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_runbook(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_line_of_a_wrong_field_is_named(tmp_path: Path) -> None:
    """The line in the file, not in the front matter."""
    path = tmp_path / "GPUAutopilotClusterFragmented.md"
    text = GOOD.replace("- action: defragment", "- action: defragment\n  command: x", 1)
    path.write_text(text, encoding="utf-8")
    line = text.splitlines().index("  command: x") + 1
    with pytest.raises(InputError, match=f"{path.name}:{line}: actions.0.command"):
        read_runbook(path)


def test_a_missing_runbook_is_named(tmp_path: Path) -> None:
    """The folder and the first name."""
    with pytest.raises(InputError, match="no runbook for GPUAutopilotClusterFragmented"):
        load_runbooks(tmp_path)


@pytest.mark.parametrize("data", [b"\xff---\n", b"-" * 70_000], ids=["not UTF-8", "too large"])
def test_a_file_that_is_no_text_is_refused(data: bytes, tmp_path: Path) -> None:
    """One message with the file."""
    path = tmp_path / "GPUAutopilotClusterFragmented.md"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"GPUAutopilotClusterFragmented\.md"):
        read_runbook(path)
