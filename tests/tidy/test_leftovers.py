"""Nothing in the tree that belongs to one machine or to an unfinished thought."""

from __future__ import annotations

import re

import pytest

from tests.tidy.tree import PACKAGES, lines_matching, name_of, python_files, text_of

# The patterns are written in pieces, for this file is searched too.
MARKS = r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b|NotImplemented" + r"Error|\bbreak" + r"point\(\)"
EMPTY_SKIP = r"pytest\.sk" + r"ip\(\)"
REGISTRIES = "|".join(
    [
        r"(extra-)?index-" + r"url",
        r"--find-" + r"links",
        r"\"resolved\": *\"" + "http",
        r"registry *= *\"?" + "https?:",
        r"https?://[^ ]+/sim" + r"ple\b",
        r"pythonhost" + r"ed\.org",
        r"registry\.npm" + r"js\.org",
    ]
)
CONFLICT = r"^(<<<<" + r"<<<|>>>>" + r">>>)( |$)"
MACHINE_PATHS = r"(?<![\w.$}{])/(wor" + r"k|ro" + r"ot|home/\w+|Users/\w+|tm" + r"p)/"
OPENING = re.compile(r'(#.*\n|\n)*r?"""\S')
"""A docstring behind comments."""


def test_no_thought_is_left_unfinished() -> None:
    """No leftover mark: finish it, or write it into docs/limits.md as a limit."""
    assert not lines_matching(MARKS)
    assert not lines_matching(EMPTY_SKIP), "say in the skip what is missing and how to get it"


def test_no_address_of_a_package_registry_is_in_the_tree() -> None:
    """Lock files name versions and hashes; where packages come from is the user's own configuration."""
    assert not lines_matching(REGISTRIES), "run `make lock`, which writes no address"


def test_no_conflict_of_a_merge_is_left() -> None:
    """A merge was resolved to its end."""
    assert not lines_matching(CONFLICT)


def test_no_path_of_one_machine_is_in_the_tree() -> None:
    """Paths are relative to the checkout, asked of tempfile or tmp_path, or given by the user."""
    assert not lines_matching(MACHINE_PATHS)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (MARKS, "# TO" + "DO later"),
        (MARKS, "raise NotImplemented" + "Error"),
        (REGISTRIES, "--index-" + "url https://x"),
        (REGISTRIES, "--find-" + "links x"),
        (REGISTRIES, '"resolved": "' + 'https://x/y.tgz"'),
        (CONFLICT, "<<<<" + "<<< HEAD"),
        (MACHINE_PATHS, "open('/tm" + "p/x')"),
        (MACHINE_PATHS, "see /ro" + "ot/.cache"),
    ],
)
def test_a_planted_leftover_is_caught(pattern: str, text: str) -> None:
    """Each rule sees what it forbids."""
    assert re.search(pattern, text)


def test_every_file_of_the_packages_says_what_it_is_for() -> None:
    """Each Python file, the __init__ files included, opens with a docstring."""
    silent = [name_of(p) for p in python_files(*PACKAGES) if not OPENING.match(text_of(p) or "")]
    assert not silent, f"open each with one sentence on what the room is for: {silent}"
