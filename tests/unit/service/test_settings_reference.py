"""The page of the settings is that of the code."""

from __future__ import annotations

from scripts.generate_settings_reference import main


def test_the_page_is_that_of_the_tree() -> None:
    """docs/settings.md is up to date; if not: python scripts/generate_settings_reference.py."""
    assert main(["--check"]) == 0
