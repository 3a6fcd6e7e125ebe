"""Every planted defect of `make mutants` fits the present source, although CI does not run the mutants."""

from __future__ import annotations

from scripts.run_mutants import mismatch, read_lists


def test_every_mutant_applies_to_the_present_source() -> None:
    """Its text occurs once, its tests exist, and the changed file compiles."""
    assert [why for mutant in read_lists([]) if (why := mismatch(mutant))] == []


def test_every_mutant_has_a_digest_of_its_own() -> None:
    """Its tests may be files, single tests or folders; verdicts are kept under the digest."""
    mutants = read_lists([])
    assert len({mutant.digest() for mutant in mutants}) == len(mutants)
