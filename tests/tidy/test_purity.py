"""The core and the models call nothing that reads or changes the world.

What they import is held by the import contracts in pyproject.toml; here are the calls that need no import.
"""

from __future__ import annotations

import ast

import pytest

from tests.tidy.tree import PURE, name_of, parsed, python_files

BUILTINS = {
    "open": "let a collector or the shell read the file and pass in what it holds",
    "print": "return the text; the command line prints",
    "input": "take it as a parameter",
    "breakpoint": "remove it",
    "__import__": "import at the top",
    "eval": "parse the text",
    "exec": "write the code out",
}
NUMPY_FILES = {
    "fromfile",
    "genfromtxt",
    "load",
    "loadtxt",
    "memmap",
    "save",
    "savetxt",
    "savez",
    "savez_compressed",
}
# Types and seeding by a given value are no draw; a draw comes from the generator that is passed in.
RANDOM_TYPES = {"Generator", "BitGenerator", "SeedSequence"}


def impure_uses(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, violation and fix) of each use of the outside world in a syntax tree."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
            found.append((node.lineno, f"{node.func.id}(): {BUILTINS[node.func.id]}"))
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if owner in ("np", "numpy") and node.attr in NUMPY_FILES:
                found.append((node.lineno, f"numpy.{node.attr}: take the array as a parameter"))
            if owner in ("np.random", "numpy.random") and node.attr not in RANDOM_TYPES:
                found.append((node.lineno, f"numpy.random.{node.attr}: take a seeded Generator as a parameter"))
    return found


def test_the_core_and_the_models_touch_no_file_terminal_or_unseeded_chance() -> None:
    """No open, print or input, no numpy file functions and no numpy.random draw in the pure folders."""
    found = [
        f"{name_of(path)}:{line}: {what}" for path in python_files(*PURE) for line, what in impure_uses(parsed(path))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    ["open('x')", "print(1)", "input()", "np.load('x')", "np.random.rand()", "numpy.random.default_rng()"],
)
def test_a_planted_impurity_is_caught(line: str) -> None:
    """The rule sees each of the calls it forbids."""
    assert impure_uses(ast.parse(line))


def test_a_generator_that_is_passed_in_is_allowed() -> None:
    """A function may draw from the generator it is given."""
    assert not impure_uses(ast.parse("def f(rng: np.random.Generator):\n    return rng.random()"))
