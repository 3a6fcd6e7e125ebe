"""Plain English: constructions that engineers of this field do not write, counted per 1,000 words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, files, name_of, parsed, python_files

MARKERS = re.compile(
    r"""\b(
    who(?:so)?ever | whom | nobody | in\ vain | so\ many | of\ which | for\ ever | for\ want\ of | mercy
    | (?:give|gives|gave|given|giving)\ way | lets?\ be | (?:is|are|was|were)\ said
    | no\ word\ about | mend(?:s|ed)? | speaks?(?:\ on|\ for)? | stands?\ in\ the\ way | would\ else
    | as\ good\ as\ each\ other | takes?\ turns\ for | what\ it\ has\ no
    )\b""",
    re.VERBOSE | re.IGNORECASE,
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
CODE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)|https?://\S+", re.DOTALL)
GENERATED = {
    "docs/policy.md",
    "docs/settings.md",
    "docs/workload-contract.md",
    "docs/output.md",
    "docs/metrics.md",
    "docs/alerts.md",
}

LIMITS: dict[str, float] = {
    "autopilot/explain": 1.5,
}
"""The most markers per 1,000 words. A limit above 1 only ever goes down; lower it when a text was rewritten."""


def _plain(text: str) -> str:
    """The prose of a text: no code, links or line breaks."""
    return re.sub(r"\s+", " ", CODE.sub(" ", text))


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _texts() -> dict[str, list[tuple[str, str]]]:
    """(where, prose) by group: the documents, the generated pages, and the docstrings of each package."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for path in files():
        if path.suffix == ".md":
            group = "generated pages" if name_of(path) in GENERATED else "documents"
            groups.setdefault(group, []).append((name_of(path), _plain(path.read_text(encoding="utf-8"))))
    for path in python_files():
        parts = path.relative_to(ROOT).parts
        group = "/".join(parts[:2]) if parts[0] in {"autopilot", "tests"} and len(parts) > 2 else parts[0]
        groups.setdefault(group, []).extend((name_of(path), _plain(text)) for text in _docstrings(path))
    return groups


TEXTS = _texts()


def _found(texts: list[tuple[str, str]]) -> list[str]:
    return [f"{where}: {match[0][:60]}" for where, text in texts for match in MARKERS.finditer(text)]


@pytest.mark.parametrize("group", sorted(TEXTS))
def test_the_english_is_plain(group: str) -> None:
    """A group of texts stays within its markers per 1,000 words; where no limit is stated, 1."""
    words = sum(len(WORD.findall(text)) for _, text in TEXTS[group])
    found = _found(TEXTS[group])
    limit = LIMITS.get(group, 1.0)
    assert len(found) <= limit * words / 1000, f"{1000 * len(found) / words:.2f} per 1,000 words: {sorted(found)}"


def test_every_limit_is_of_a_group() -> None:
    """A limit for a package that is gone is removed."""
    assert not LIMITS.keys() - TEXTS.keys()


@pytest.mark.parametrize(
    "sentence",
    [
        "It evicts whoever holds most.",
        "The gang for whom others give way.",
        "Nobody is asked.",
        "Opted-out work is let be.",
        "What it has no word about is None.",
        "It tried in vain.",
        "Ask for so many GPUs, of which two are free.",
        "The message names the mend: mend the file.",
        "The champion speaks on.",
    ],
)
def test_a_planted_sentence_is_found(sentence: str) -> None:
    """Each marker is found in prose; the same words in code are not prose."""
    assert _found([("here", _plain(sentence))])
    assert not _found([("here", _plain(f"`{sentence}`"))])


@pytest.mark.parametrize(
    "sentence", ["The victim frees two GPUs.", "Who may start? The rule set decides.", "Amend it."]
)
def test_plain_sentences_pass(sentence: str) -> None:
    """Standard terms and questions are no markers."""
    assert not _found([("here", _plain(sentence))])
