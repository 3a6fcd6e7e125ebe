"""What the documents tell people to type exists."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

from autopilot.cli import main
from tests.tidy.tree import ROOT, files, name_of

CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
DOCUMENTS = [p for p in files() if p.suffix == ".md"]
NEW_FILES = {
    "autopilot/core/recovery/stop_late.py",
    "autopilot/core/guards/most_taken.py",
    "autopilot/core/quota/rules/priority_alone.py",
    "collectors/smi.py",
    "actuators/kubernetes/levers/node_quarantine.py",
    "autopilot/core/recovery/quarantine.py",
}
"""Files that the examples of the pages on adding things tell the reader to create."""


def _code(path: Path) -> str:
    """The text of all code blocks and code spans of a document."""
    text = path.read_text(encoding="utf-8")
    return "\n".join(match[1] or match[2] for match in CODE.finditer(text))


def _targets() -> set[str]:
    return set(re.findall(r"(?m)^([a-z0-9-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_make_verb_in_a_document_is_in_the_makefile(path: Path) -> None:
    """`make X` in a document names a target of the Makefile."""
    verbs = set(re.findall(r"(?m)(?:^|[\s`;&(])make ([a-z][a-z0-9-]*)", _code(path)))
    assert not verbs - _targets(), "the Makefile lacks these; fix the document or add the verb"


def test_every_command_in_a_document_is_in_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """`autopilot X` in a code block or span of a document is a command that explains itself."""
    verbs = {
        verb for path in DOCUMENTS for verb in re.findall(r"(?m)(?:^|[\s`;&(/])autopilot ([a-z][a-z-]*)", _code(path))
    }
    for verb in sorted(verbs):
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        said = capsys.readouterr().err
        assert ended.value.code == 0, f"`autopilot {verb}` is documented and does not exist: {said[-300:]}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_relative_link_in_a_document_leads_somewhere(path: Path) -> None:
    """A link or picture of a document that is no web address is a file of the checkout, and its anchor a heading."""
    text = path.read_text(encoding="utf-8")
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    local = [(link, anchor) for link, _, anchor in links if not re.match(r"[a-z]+:", link)]
    targets = [(path.parent / link if link else path, anchor) for link, anchor in local]
    missing = [f"{target}#{anchor}" for target, anchor in targets if not target.exists() or not _has(target, anchor)]
    assert not missing, "fix the link"


def _has(page: Path, anchor: str) -> bool:
    """True for a heading of the page with this anchor, as GitHub makes it, and without an anchor."""
    if not anchor or page.suffix != ".md":
        return True
    headings = re.findall(r"(?m)^#+ (.*)$", page.read_text(encoding="utf-8"))
    return anchor in {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


def test_every_decision_has_a_number_of_its_own() -> None:
    """No two pages of docs/decisions begin with one number."""
    numbers = [path.name[:4] for path in (ROOT / "docs" / "decisions").glob("0*.md")]
    assert len(set(numbers)) == len(numbers), "take the next free number"


def test_the_readme_is_short() -> None:
    """README.md stays under 250 lines."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 250, "move details to a page in docs/"


def test_every_figure_of_the_readme_is_on_the_benchmarks_page() -> None:
    """Each number beside a benchmark in README.md is in a row of docs/benchmarks.md with the same command."""
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/benchmarks.md"))
    number = re.compile(r"\d[\d.,]*\d|\d")
    rows = [row for row in readme.splitlines() if row.startswith("| ") and "`python -m benchmarks " in row]
    assert rows
    for row in rows:
        command = row.rsplit("|", 2)[1].strip()
        known = {each for line in page.splitlines() if line.endswith(f"| {command} |") for each in number.findall(line)}
        assert set(number.findall(row)) <= known, f"not among the figures of {command}: {row}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_source_file_that_a_document_names_exists(path: Path) -> None:
    """`core/decision/planner.py` names a file from the root, `autopilot/` or `autopilot/core/`; so does a folder.

    A folder that .gitignore lists is made by a command, and a fresh clone does not have it.
    """
    text = path.read_text(encoding="utf-8")
    if "Superseded by" in text:
        pytest.skip("a superseded decision names the files of its time")
    names = {name for pair in re.findall(r"`([\w./-]+/[\w.-]+\.py)`|`((?:\w+/)+)`", text) for name in pair if name}
    bases = (ROOT, ROOT / "autopilot", ROOT / "autopilot" / "core")
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    made = tuple(line for line in ignored if re.fullmatch(r"[\w.-]+/", line))
    named = {name for name in names - NEW_FILES if not name.startswith(made)}
    missing = sorted(name for name in named if not any((base / name).exists() for base in bases))
    assert not missing, "fix the path"


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("adding-*.md")), ids=name_of)
def test_the_imports_of_every_example_resolve(path: Path) -> None:
    """A Python block of a page on adding something imports only names that exist; CONTRIBUTING.md links the page."""
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    missing = [
        f"{node.module}.{alias.name}"
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        if f"{str(node.module).replace('.', '/')}.py" not in NEW_FILES
        for alias in node.names
        if not hasattr(importlib.import_module(str(node.module)), alias.name)
    ]
    assert not missing, "follow the rename in the example"
    assert f"(docs/{path.name})" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "add its row to the table"
