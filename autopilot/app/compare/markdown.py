"""A comparison as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autopilot.app.compare.summary import Finding, Group, heading, spread_text


def markdown(title: str, facts: Sequence[str], groups: Sequence[Group], said: Sequence[Finding], currency: str) -> str:
    """The whole summary; every name is escaped."""
    parts = [f"# {escaped(title)}", "", *(f"- {escaped(fact)}" for fact in facts)]
    for group in groups:
        parts += ["", f"## {escaped(group.title)}", ""]
        parts.append("| figure | " + " | ".join(map(escaped, group.policies)) + " |")
        parts.append("|---|" + "---:|" * len(group.policies))
        for figure, spreads in group.rows:
            cells = " | ".join(escaped(spread_text(figure, spread)) for spread in spreads)
            parts.append(f"| {heading(figure, currency)} | {cells} |")
    if said:
        parts += ["", "## What differs", "", *(f"- {escaped(each.words)}" for each in said)]
    return "\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))
