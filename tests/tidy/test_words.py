"""Plain English: constructions that engineers of this field do not write, counted per 1,000 words."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, files, name_of, parsed, python_files, text_of

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
NOT_USED = re.compile(
    r"handed[ _]out | fared\ worse | left\ to\ you,\ without | holds\ every\ action | effects\ may\ leave"
    r"| needs\ approval"
    r"| would\ be\ gone\ in | owed\ of\ guarantees | open\ the\ way\ for\ waiting | its\ pods\ have\ their\ nodes",
    re.VERBOSE | re.IGNORECASE,
)
"""Words that a user meets under another name: the glossary has the one to use."""
TELL_OF_THEM = {"docs/earlier-builds.md", "docs/glossary.md", "tests/tidy/test_words.py"}
"""Files that name what was renamed."""
GENERATED = {
    "docs/policy.md",
    "docs/settings.md",
    "docs/workload-contract.md",
    "docs/output.md",
    "docs/metrics.md",
    "docs/alerts.md",
}

LIMITS: dict[str, float] = {}
"""The most markers per 1,000 words. A limit above 1 only ever goes down; lower it when a text was rewritten."""


def _plain(text: str) -> str:
    """The prose of a text: no code, links or line breaks."""
    return re.sub(r"\s+", " ", CODE.sub(" ", text))


def _docstrings(path: Path) -> Iterator[str]:
    """Docstrings of modules, classes, functions and attributes: statements, so no expression is searched."""
    left: list[ast.AST] = [parsed(path)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            inside = getattr(node, block, None)
            left += inside if isinstance(inside, list) else []


def _groups() -> dict[str, list[Path]]:
    """Files by group: the documents, the generated pages, and the modules of each package."""
    groups: dict[str, list[Path]] = {}
    for path in files():
        if path.suffix == ".md":
            groups.setdefault("generated pages" if name_of(path) in GENERATED else "documents", []).append(path)
    for path in python_files():
        parts = path.relative_to(ROOT).parts
        group = "/".join(parts[:2]) if parts[0] in {"autopilot", "tests"} and len(parts) > 2 else parts[0]
        groups.setdefault(group, []).append(path)
    return groups


GROUPS = _groups()


@functools.cache  # read by the tests, not at import: every worker of a run imports every test module
def _texts(group: str) -> list[tuple[str, str]]:
    """(where, prose) of the documents or docstrings of a group."""
    found: list[tuple[str, str]] = []
    for path in GROUPS[group]:
        texts = _docstrings(path) if path.suffix == ".py" else [path.read_text(encoding="utf-8")]
        found += [(name_of(path), _plain(text)) for text in texts]
    return found


def _found(texts: list[tuple[str, str]]) -> list[str]:
    return [f"{where}: {match[0][:60]}" for where, text in texts for match in MARKERS.finditer(text)]


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_the_english_is_plain(group: str) -> None:
    """A group of texts stays within its markers per 1,000 words; where no limit is stated, 1."""
    texts = _texts(group)
    words = sum(len(WORD.findall(text)) for _, text in texts)
    found = _found(texts)
    limit = LIMITS.get(group, 1.0)
    assert len(found) <= limit * words / 1000, f"{1000 * len(found) / words:.2f} per 1,000 words: {sorted(found)}"


def test_one_word_is_used_for_each_thing() -> None:
    """No file of the repository, text or code, has a word that another one replaced."""
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in files()
        if name_of(path) not in TELL_OF_THEM and (text := text_of(path)) is not None
        for match in NOT_USED.finditer(text)
    ]
    assert not found


def test_every_limit_is_of_a_group() -> None:
    """A limit for a package that is gone is removed."""
    assert not LIMITS.keys() - GROUPS.keys()


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
