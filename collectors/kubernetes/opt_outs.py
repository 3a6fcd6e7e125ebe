"""Opt-outs of people: annotations of namespaces, and windows of namespaces and single objects.

And their approvals there, if the operator lets these count (`kubernetes.approve_on_work`).

`gpu-autopilot.io/exclude: "true"` leaves all work of a namespace alone, `gpu-autopilot.io/window` all but within these
hours. Any of them protects: an object cannot lift the rule of its namespace. An unreadable value protects too, and is a
gap with its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autopilot.contract.annotations import APPROVE, EXCLUDE, REJECT, WINDOW
from autopilot.core.model.errors import InputError
from autopilot.core.model.hours import parse_hours, within_hours
from autopilot.core.model.records import Gap
from collectors.kubernetes.cache import Changes
from collectors.kubernetes.wire import Meta

SHOWN = 60
MOST_WINDOWS = 1000
"""Remembered windows; more are looked at again each time."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """The annotations of one namespace."""

    excluded: bool = False
    window: str = ""
    problem: str = ""  # the unreadable value
    approves: bool = False  # actions on its work alone
    idle: str = ""  # reason for an approval or a rejection without effect


NO_RULE = _Rule()


@dataclass(slots=True)
class OptOuts:
    """The rules of all namespaces, and the open windows."""

    now_s: float = 0.0
    approvals: bool = False  # approvals on work and namespaces count
    rules: dict[str, _Rule] = field(default_factory=dict)
    _uids: dict[str, str] = field(default_factory=dict)  # namespace -> uid of its object
    _open: dict[str, bool] = field(default_factory=dict)  # window -> open now

    def update(self, changes: Changes) -> set[str]:
        """Take in namespaces; returns those with a changed rule."""
        changed = set()
        for found in changes.gone:
            name = found.metadata.name
            if self._uids.get(name) == found.metadata.uid:
                del self._uids[name]
                changed |= {name} if self.rules.pop(name, None) is not None else set()
        for found in changes.there:
            name, rule = found.metadata.name, self._rule(found.metadata)
            self._uids[name] = found.metadata.uid
            if self.rules.get(name, NO_RULE) != rule:
                changed.add(name)
            if rule == NO_RULE:
                self.rules.pop(name, None)
            else:
                self.rules[name] = rule
        return changed

    def at(self, now_s: float) -> bool:
        """Move the clock; true if a window opened or closed."""
        self.now_s = now_s
        before, self._open = self._open, {}
        if len(before) > MOST_WINDOWS:
            return True
        return any([self.opens(window) != was for window, was in before.items()])  # noqa: C419 - all are looked at

    def opens(self, window: str) -> bool:
        """True for an open window; an unreadable one is not open."""
        if window not in self._open:
            self._open[window] = not _problem(window) and within_hours(parse_hours(window, WINDOW), self.now_s)
        return self._open[window]

    def alone(self, namespace: str, window: str = "") -> bool:
        """True if an object is left alone now. `window` is its own; its own `exclude` is part of its contract."""
        rule = self.rules.get(namespace, NO_RULE)
        if rule.excluded or rule.problem:
            return True
        return any(not self.opens(each) for each in (rule.window, window) if each)

    def approves(self, namespace: str) -> bool:
        """True if a namespace approves actions on its work alone."""
        return self.rules.get(namespace, NO_RULE).approves

    def problems(self, window: str) -> list[tuple[str, str]]:
        """Problem with the window of an object."""
        wrong = _problem(window) if window else ""
        return [("window", f"{WINDOW}: {wrong}; it is left alone")] if wrong else []

    def gaps(self, source: str) -> Iterator[Gap]:
        """A gap for each namespace with unreadable annotations."""
        for name, rule in sorted(self.rules.items()):
            if rule.problem:
                yield Gap(source, f"namespace/{name}", "opt-out", f"{rule.problem}; all its work is left alone")
            if rule.idle:
                yield Gap(source, f"namespace/{name}", "approval", rule.idle)

    def _rule(self, found: Meta) -> _Rule:
        told = found.note(EXCLUDE).strip().lower()
        return _Rule(told == "true", found.note(WINDOW), unclear(found), *consent(found, counts=self.approvals))


def consent(*found: Meta, counts: bool) -> tuple[bool, str]:
    """True if these objects approve actions on their work alone; and the reason for an annotation without effect.

    The right to annotate work or a namespace is not the right to approve, unless the operator says so (`counts`).
    """
    if any(each.note(REJECT) for each in found):
        return False, f'{REJECT} decides nothing here; {EXCLUDE}: "true" keeps the autopilot away'
    told = next((note for each in found if (note := each.note(APPROVE).strip())), "")
    if told and not counts:
        return False, f"{APPROVE} decides nothing here; annotate the Recommendation: kubectl get recommendations"
    if told.lower() not in {"", "yes"}:
        return False, f"{APPROVE}: {told[:SHOWN]!r} is not allowed; it takes yes"
    return bool(told), ""


def unclear(found: Meta) -> str:
    """The unreadable part of the opt-outs of an object; "" for none."""
    exclude, window = found.note(EXCLUDE), found.note(WINDOW)
    if exclude.strip().lower() not in {"", "true", "false"}:
        return f"{EXCLUDE}: {exclude[:SHOWN]!r} is not allowed; it takes true or false"
    wrong = _problem(window) if window else ""
    return f"{WINDOW}: {wrong}" if wrong else ""


def _problem(window: str) -> str:
    """Problem of an unreadable window; "" for none."""
    try:
        parse_hours(window, "")
    except InputError as error:
        return str(error).removeprefix(": ")
    return ""
