"""The book of verdicts: one file for each (run, case), written once, believed only unchanged."""

from __future__ import annotations

from pathlib import Path

from autopilot.registry import VerdictBook, run_name


def test_a_verdict_is_written_once(tmp_path: Path) -> None:
    """The same again changes nothing; another one replaces it; names of groups cannot leave the folder."""
    book = VerdictBook(tmp_path)
    run = run_name(policy="p", data="d")
    assert run == run_name(data="d", policy="p")
    assert book.write(run, "../../tenant /a", {"passed": True})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert not book.write(run, "../../tenant /a", {"passed": True})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == before
    assert book.write(run, "../../tenant _a", {"passed": False})
    assert [path.parent for path in before] == [tmp_path / "verdicts" / run]
    assert book.read(run, "../../tenant /a") == {"run": run, "case": "../../tenant /a", "passed": True}
    assert book.read(run, "../../tenant _a") == {"run": run, "case": "../../tenant _a", "passed": False}
    assert book.read(run, "other") is None


def test_verdicts_go_with_their_version(tmp_path: Path) -> None:
    """Those of versions that are gone; those of code, of policies and of versions that are there stay."""
    book = VerdictBook(tmp_path)
    for run, version in (("a", "a" * 64), ("b", "b" * 64), ("code", "code 1+x")):
        book.write(run, "summary", {"version": version})
        book.write(run, "case", {"passed": True})
    book.write("policy", "summary", {"policy": "p"})
    assert book.drop_unknown({"a" * 64}) == 1
    assert {each["run"] for each in book.summaries()} == {"a", "code", "policy"}
    assert not (tmp_path / "verdicts" / "b").exists()


def test_a_changed_verdict_is_not_believed(tmp_path: Path) -> None:
    """A refusal that somebody turned into a pass is none."""
    book = VerdictBook(tmp_path)
    book.write("r", "summary", {"passed": False, "version": "v"})
    assert [each["passed"] for each in book.summaries()] == [False]
    (place,) = tmp_path.rglob("summary.json")
    place.write_text(place.read_text().replace("false", "true"))
    assert book.read("r", "summary") is None
    assert book.summaries() == []
