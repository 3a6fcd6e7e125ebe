"""A runbook as elements without attributes: nothing in its text becomes a link, a script or a style."""

from __future__ import annotations

from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

TAGS = frozenset(
    {"p", "ul", "ol", "li", "code", "strong", "em", "blockquote", *("table", "thead", "tbody", "tr", "th", "td")}
)
"""Kept elements; of any other the text stays. Blocks of code are `pre`, headings one level lower."""

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")

Part = str | dict[str, Any]
"""A text, or an element: its `tag` and its parts `inside`."""


def parts_of(text: str) -> list[Part]:
    """The runbook below its title."""
    tree = SyntaxTreeNode(_MARKDOWN.parse(text))
    return [part for node in tree.children if node.tag != "h1" for part in _parts(node)]


def _parts(node: SyntaxTreeNode) -> list[Part]:
    if node.type in {"softbreak", "hardbreak"}:
        return [" "]
    if node.type in {"fence", "code_block"}:
        return [{"tag": "pre", "inside": [node.content]}]
    inside: list[Part] = [part for child in node.children for part in _parts(child)] or [node.content]
    if node.type == "heading":
        return [{"tag": f"h{min(int(node.tag[1]) + 1, 6)}", "inside": inside}]
    return [{"tag": node.tag, "inside": inside}] if node.tag in TAGS and not node.hidden else inside
