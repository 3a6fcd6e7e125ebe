"""The page of the metrics is that of the code."""

from __future__ import annotations

from scripts.generate_metrics_reference import main


def test_the_page_is_that_of_the_table() -> None:
    """docs/metrics.md is up to date; if not: python scripts/generate_metrics_reference.py."""
    assert main(["--check"]) == 0
