"""Runbooks: Markdown with a front matter for the service.

The front matter names the alert, the label of its object, the queries for evidence, the actions with possibly helpful
proposals, and the query for their success. A `$LABEL` in a query stands for the value of a label of the alert. It is
inserted as a quoted PromQL string, so no value can change the query.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from autopilot.core.capabilities.actions import ACTIONS
from autopilot.core.model.errors import InputError, nearest
from autopilot.core.model.units import parse_duration_s

SUBJECTS = ("pool", "tenant", "queue", "service", "node", "gpu_model", "collector", "action", "operation")
SECTIONS = (
    "Meaning",
    "Impact",
    "Diagnosis",
    "Mitigation",
    "Automation",
    "Verification",
    "False positives",
)
"""Headings of every runbook, in this order."""

MAX_BYTES = 256 << 10
_PARAMETER = re.compile(r"\$([a-z_]+)")
_NAMES = tuple(action.name for action in ACTIONS)


def _seconds(value: Any) -> Any:
    try:
        return parse_duration_s(value) if isinstance(value, str) else value
    except InputError as error:
        raise ValueError(str(error)) from error


Seconds = Annotated[float, BeforeValidator(_seconds)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Diagnosis(_Part):
    """One query for evidence."""

    title: str = Field(min_length=1, max_length=200)
    query: str = Field(min_length=1, max_length=2_000)
    unit: str = Field("", max_length=40)


class Asked(_Part):
    """An action with possibly helpful proposals."""

    action: str
    why: str = Field(min_length=1, max_length=400)

    @model_validator(mode="after")
    def _known(self) -> Asked:
        if self.action not in _NAMES:
            near = nearest(self.action, _NAMES)
            raise ValueError(f"unknown action {self.action!r}; {near or 'there are ' + ', '.join(_NAMES)}")
        return self


class Verification(_Part):
    """The proof of the cause's end. An empty query: the end of the alert itself."""

    query: str = Field("", max_length=2_000)
    below: float | None = None
    above: float | None = None
    within: Seconds = Field(900.0, gt=0, le=86_400)

    @model_validator(mode="after")
    def _one_bound(self) -> Verification:
        if bool(self.query) != ((self.below is None) != (self.above is None)):
            raise ValueError("give a query with one of `below` and `above`, or neither")
        return self

    def holds(self, value: float) -> bool:
        """True if a value of the query proves the end of the cause. NaN is unknown, and proves nothing."""
        return value < self.below if self.below is not None else self.above is not None and value > self.above


class FrontMatter(_Part):
    """The part of a runbook for the service."""

    alert: str = Field(pattern=r"^[A-Z][A-Za-z0-9]{1,99}$")
    subject: Literal["", *SUBJECTS] = ""  # type: ignore[valid-type]  # the label of the object
    diagnosis: tuple[Diagnosis, ...] = ()
    actions: tuple[Asked, ...] = ()
    verification: Verification = Verification()
    undo: str = Field(min_length=1, max_length=600)

    @model_validator(mode="after")
    def _parameters(self) -> FrontMatter:
        for query in (*(each.query for each in self.diagnosis), self.verification.query):
            for name in _PARAMETER.findall(query):
                if name not in SUBJECTS:
                    raise ValueError(f"${name}: no label of an alert; {nearest(name, SUBJECTS) or ', '.join(SUBJECTS)}")
        return self


@dataclass(frozen=True, slots=True)
class Runbook:
    """One runbook: its front matter and its text in Markdown."""

    front: FrontMatter
    text: str
    source: str

    @property
    def alert(self) -> str:
        """Name of the alert."""
        return self.front.alert


def bound(query: str, labels: Mapping[str, str]) -> str | None:
    """The query with the labels of an alert in place; None if the alert lacks a label of the query."""
    if any(name not in labels for name in _PARAMETER.findall(query)):
        return None
    return _PARAMETER.sub(lambda match: quoted(labels[match[1]]), query)


def quoted(value: str) -> str:
    """A PromQL string."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def parse_runbook(content: bytes, source: str) -> Runbook:
    """The runbook of a file. Raises `InputError` with file, line and fix."""
    if len(content) > MAX_BYTES:
        raise InputError(f"{source}: over {MAX_BYTES >> 10} KiB, too large for a runbook")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    lines = text.split("\n")
    if lines[0].strip() != "---":
        raise InputError(f"{source}:1: a runbook begins with a line `---` and its front matter")
    end = next((at for at, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        raise InputError(f"{source}:1: the front matter does not end; close it with a line `---`")
    front = _front("\n".join(lines[1:end]), source)
    body = "\n".join(lines[end + 1 :]).strip() + "\n"
    _check_body(body, front, source, end + 2)
    return Runbook(front, body, source)


def _front(text: str, source: str) -> FrontMatter:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 2 if mark is not None else 2
        raise InputError(
            f"{source}:{line}: the front matter is not YAML: {getattr(error, 'problem', error)}"
        ) from error
    except RecursionError as error:
        raise InputError(f"{source}:2: the front matter is nested too deeply") from error
    if not isinstance(content, dict):
        raise InputError(f"{source}:2: the front matter is not a mapping; write `alert: NAME` and the other fields")
    try:
        return FrontMatter.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(step) for step in first["loc"]) or "front matter"
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(f"{source}:{_line_of(text, first['loc'])}: {path}: {reason}") from error


def _line_of(text: str, path: tuple[int | str, ...]) -> int:
    """The line in the file of the node at `path`, or of the nearest one above it."""
    node = yaml.compose(text, yaml.SafeLoader)
    line = 2
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == step), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 2, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 2
        else:
            break
    return line


def _check_body(body: str, front: FrontMatter, source: str, first: int) -> None:
    headings = [(number, line) for number, line in enumerate(body.split("\n"), first) if line.startswith(("# ", "## "))]
    if not headings or headings[0][1] != f"# {front.alert}":
        raise InputError(f"{source}:{first}: the text begins with the heading `# {front.alert}`")
    found = tuple(line.removeprefix("## ") for _, line in headings[1:])
    missing = [name for name in SECTIONS if name not in found]
    if missing:
        raise InputError(f"{source}:{first}: the section `## {missing[0]}` is missing")
    if tuple(name for name in found if name in SECTIONS) != SECTIONS:
        raise InputError(f"{source}:{first}: the sections are not in the order {', '.join(SECTIONS)}")


def load_runbooks(folder: Path | None = None) -> dict[str, Runbook]:
    """All runbooks of a folder by alert; None: the shipped ones. Raises `InputError` for the first broken one."""
    place: Traversable = resources.files("runbooks") if folder is None else folder
    if not place.is_dir():
        raise InputError(f"{place}: no such folder of runbooks")
    found: dict[str, Runbook] = {}
    for file in sorted(place.iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".md") or file.name == "README.md":
            continue
        source = file.name if folder is None else str(folder / file.name)
        book = parse_runbook(file.read_bytes(), source)
        if file.name != f"{book.alert}.md":
            raise InputError(f"{source}:2: alert: {book.alert}: the file of this alert is {book.alert}.md")
        found[book.alert] = book
    return found
