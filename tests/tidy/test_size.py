"""Files and functions that fit in one head."""

from __future__ import annotations

import ast
import re

import pytest

from tests.tidy.tree import name_of, parsed, python_files

FILE_LINES = 450
FUNCTION_LINES = 70
# A function longer than the limit, as "file:name", each with its reason in a comment.
LONG_FUNCTIONS: frozenset[str] = frozenset()

SKIP = "# fmt" + ": skip"
TABLE_END = re.compile(r"[\])}]+  " + SKIP)

Function = ast.FunctionDef | ast.AsyncFunctionDef
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


def _functions(tree: ast.AST) -> list[Function]:
    """All functions, found among the statements: no expression holds one."""
    found, left = [], [tree]
    while left:
        inside = [node for node in ast.iter_child_nodes(left.pop()) if isinstance(node, STATEMENTS)]
        found += [node for node in inside if isinstance(node, Function)]
        left += inside
    return found


def _length(function: Function) -> int:
    """Lines from `def` to the last statement, the docstring not counted."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def test_no_python_file_is_longer_than_a_reader_keeps_in_mind() -> None:
    """A Python file has at most 450 lines."""
    counts = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in python_files()}
    long = {name: lines for name, lines in counts.items() if lines > FILE_LINES}
    assert not long, f"over {FILE_LINES} lines; split each by what it does, not by its length: {long}"


def test_no_function_is_longer_than_a_screen() -> None:
    """A function has at most 70 lines, its docstring not counted."""
    found = {
        f"{name_of(path)}:{function.name}": _length(function)
        for path in python_files()
        for function in _functions(parsed(path))
        if _length(function) > FUNCTION_LINES
    }
    long = {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS}
    assert not long, f"over {FUNCTION_LINES} lines; name a part of it and move it to its own function: {long}"
    assert found.keys() >= LONG_FUNCTIONS, "a function in LONG_FUNCTIONS is short now; take it off the list"


def test_the_length_of_a_function_leaves_its_docstring_out() -> None:
    """The measure counts the statements and not the prose."""
    tree = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    x = 1\n    return x\n')
    assert _length(_functions(tree)[0]) == 3


def test_the_formatter_is_overruled_for_tables_of_data_alone() -> None:
    """`fmt: skip` stands behind the bracket that closes a table at module level, and nowhere else."""
    found = [
        f"{name_of(path)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if SKIP in line and not TABLE_END.fullmatch(line)
    ]
    assert not found, "let the formatter lay it out; shorten the signature or name a part of it"


@pytest.mark.parametrize("line", ["    f(a, b)  " + SKIP, "x = [1, 2]  " + SKIP, "    ]  " + SKIP])
def test_a_planted_skip_is_caught(line: str) -> None:
    """A statement inside a function or on one line is no table."""
    assert not TABLE_END.fullmatch(line)
