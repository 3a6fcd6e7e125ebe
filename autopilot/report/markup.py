"""HTML fragments; every text from the data passes through `text`."""

from __future__ import annotations

import html
from collections.abc import Sequence

from autopilot.explain.proposals import Answer, answer_words


def text(value: object) -> str:
    """Any value as HTML text, quotes escaped, so it can be an attribute too."""
    return html.escape(str(value), quote=True)


def box(label: str, table: str, kind: str = "box") -> str:
    """A table with its own scroll box on a narrow page, also by keyboard."""
    return f'<div class="{kind}" tabindex="0" role="region" aria-label="{text(label)}">{table}</div>'


def table(head: str, rows: Sequence[str], kind: str = "") -> str:
    """A table from a finished head row and finished body rows."""
    return f'<table class="{kind}"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'


def chip(answer: str) -> str:
    """The verdict of a decision, shown by word, colour and edge."""
    return f'<b class="chip {text(answer)}">{text(answer_words(Answer(answer)))}</b>'


def pairs(label: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table of texts, in a box; a column of dashes is omitted."""
    kept = [at for at, _ in enumerate(names) if at == 0 or any(str(row[at]) != "-" for row in rows)]
    head = "".join(f"<th scope=col>{text(names[at])}</th>" for at in kept)
    body = [
        "<tr>"
        + "".join(f"<th scope=row>{text(row[at])}</th>" if at == 0 else f"<td>{text(row[at])}</td>" for at in kept)
        + "</tr>"
        for row in rows
    ]
    return box(label, table(f"<tr>{head}</tr>", body, "words"))


def fold(head: str, body: str, opened: bool = False) -> str:
    """A part shown on request: a finished head with its body; empty without a body."""
    if not body:
        return ""
    return f'<details class="fold"{" open" if opened else ""}><summary>{head}</summary>{body}</details>'
