"""Runbooks: one Markdown file for each alert, with a front matter that a program can follow.

A runbook names queries, evidence, and actions that it may ask for. It cannot raise a mode, choose victims, waive a
guard or carry commands: the schema has no fields for that, and unknown fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from autopilot.alerts.table import ALERTS, Alert
from autopilot.core.guards import GUARDS
from autopilot.core.model.errors import InputError
from autopilot.core.model.modes import Modes
from autopilot.metrics.table import METRICS

SECTIONS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Automation", "Verification", "False positives")
"""The sections of every runbook, in this order."""

PLACEHOLDER = re.compile(r"\$([a-z_]+)")
MOST_BYTES = 64 * 1024


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Query(_Part):
    """A query and what it shows. `$label` stands for a label of the alert."""

    name: str = Field(min_length=1)
    query: str = Field(min_length=1)
    shows: str = Field(min_length=1)


class AllowedAction(_Part):
    """An action that the runbook may ask for. Every guard judges it; `guards` are those that usually decide."""

    action: str
    when: str = Field(min_length=1)
    guards: tuple[str, ...] = Field(min_length=1, strict=False)
    undo: str = Field(min_length=1)


class Verification(_Part):
    """The query that must be empty, or below a number, when the problem is solved."""

    query: str = Field(min_length=1)
    good: Literal["empty", "not empty"]
    within: str = Field(pattern=r"^\d+(s|m|h)$")


class FrontMatter(_Part):
    """What a program reads."""

    alert: str
    severity: str
    diagnosis: tuple[Query, ...] = Field(min_length=1, strict=False)
    evidence: tuple[str, ...] = Field(min_length=1, strict=False)
    actions: tuple[AllowedAction, ...] = Field(strict=False)
    verification: Verification
    undo: str = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Runbook:
    """One runbook: its front matter, and its text by section."""

    path: Path
    matter: FrontMatter
    sections: Mapping[str, str]


def labels_of(alert: Alert) -> frozenset[str]:
    """The labels that an alert carries, as its description names them."""
    return frozenset(re.findall(r"\$labels\.(\w+)", alert.description))


def filled(query: str, labels: Mapping[str, str]) -> str:
    """A query with the labels of one alert, escaped; a label without a value matches anything empty."""

    def value(match: re.Match[str]) -> str:
        text = labels.get(match[1], "")
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return PLACEHOLDER.sub(value, query)


def load_runbooks(folder: Path) -> dict[str, Runbook]:
    """Every runbook by the name of its alert. Raises `InputError` with file and line for the first that is broken, and
    for an alert without one.
    """
    found = {path.stem: read_runbook(path) for path in sorted(folder.glob("GPUAutopilot*.md"))}
    missing = [alert.name for alert in ALERTS if alert.name not in found]
    if missing:
        raise InputError(f"{folder}: no runbook for {', '.join(missing)}; add {missing[0]}.md")
    return found


def read_runbook(path: Path) -> Runbook:
    """One runbook. Raises `InputError` that names the file, the line or field, and the fix."""
    data = path.read_bytes()
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: {len(data):,} bytes are not allowed; write at most {MOST_BYTES:,}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    head = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
    if head is None:
        raise InputError(f"{path}:1: there is no front matter; begin the file with `---`, YAML, and `---`")
    matter = _front_matter(path, head[1])
    alert = next((alert for alert in ALERTS if alert.name == matter.alert), None)
    if alert is None or matter.alert != path.stem:
        raise InputError(f"{path}: alert: {matter.alert!r} must be the name of the file and of an alert")
    _check(path, matter, alert)
    return Runbook(path, matter, _sections(path, text[head.end() :], text[: head.end()].count("\n") + 1))


def _front_matter(path: Path, text: str) -> FrontMatter:
    try:
        content: Any = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 2 if error.problem_mark is not None else 1
        raise InputError(f"{path}:{line}: the front matter is not YAML: {error.problem}") from error
    try:
        return FrontMatter.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        line = _line_of(text, first["loc"])
        raise InputError(f"{path}:{line}: {field}: {first['msg']}") from error


def _line_of(text: str, place: tuple[int | str, ...]) -> int:
    """The line of a field in the file, or the nearest one above it that is there."""
    node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == part), None)
            node = pair[1] if pair is not None else None
            line = pair[0].start_mark.line + 2 if pair is not None else line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 2
        else:
            break
    return line


def _check(path: Path, matter: FrontMatter, alert: Alert) -> None:
    """What pydantic cannot know: severity, guards, metrics, labels."""
    if matter.severity != alert.severity:
        raise InputError(f"{path}: severity: {matter.severity!r} is that of no alert; write {alert.severity}")
    guards = {name for name, _ in GUARDS}
    for action in matter.actions:
        if action.action not in Modes.__dataclass_fields__:
            raise InputError(f"{path}: actions: {action.action!r} is no action; docs/policy.md has the list (modes)")
        for guard in action.guards:
            if guard not in guards:
                raise InputError(f"{path}: actions: {action.action}: guard {guard!r} does not exist")
    known = {metric.full_name for metric in METRICS}
    for name in matter.evidence:
        if name not in known:
            raise InputError(f"{path}: evidence: metric {name!r} does not exist; docs/metrics.md has the list")
    queries = [query.query for query in matter.diagnosis] + [matter.verification.query]
    wrong = {label for query in queries for label in PLACEHOLDER.findall(query)} - labels_of(alert)
    if wrong:
        raise InputError(f"{path}: ${min(wrong)}: the alert has no such label; it has {sorted(labels_of(alert))}")


def _sections(path: Path, text: str, first_line: int) -> dict[str, str]:
    """The text by section; all of them, in order, none empty."""
    parts = re.split(r"(?m)^## (.+)\n", text)
    names = tuple(parts[1::2])
    if names != SECTIONS:
        raise InputError(f"{path}:{first_line}: the sections are {names}; write {SECTIONS}")
    found = {name: body.strip() for name, body in zip(names, parts[2::2], strict=True)}
    empty = [name for name, body in found.items() if not body]
    if empty:
        raise InputError(f"{path}: section {empty[0]!r} is empty")
    return found
