"""`autopilot models` and `autopilot backtest`: what they print, change and refuse. The models are small stand-ins."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autopilot.app.backtests import golden
from autopilot.app.commands import run_commands
from tests.kits.registry_kit import manifest, registry, stocked
from tests.unit.app.model_commands_kit import FakeRun, judge_golden, said, stored_version


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a state folder of its own, and wide lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "250")
    (tmp_path / "series.csv").write_text("t_s,service,value\n0,a,1\n")
    (tmp_path / "jobs.csv").write_text("job_id,tenant,submit_s,duration_s,gpus\nj,t,0,60,1\n")
    return tmp_path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRun:
    """In place of both backtests."""
    run = FakeRun()
    for name in ("autopilot.app.backtests.from_requests", "autopilot.app.backtests.from_jobs"):
        module = ModuleType(name)
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    return run


# --- backtest ---------------------------------------------------------------------------------------


def test_a_backtest_prints_a_table_and_writes_its_document(
    fake: FakeRun, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options arrive as they were given; without --gate nothing is stored."""
    text = said(
        capsys,
        "backtest",
        "bursts",
        "--series",
        "series.csv",
        "--horizons",
        "10m,1h",
        "--target",
        "peak",
        "--json",
        "out.json",
        "--seed",
        "4",
    )
    assert "0.007 (0.010)" in text
    assert "boosting 3" in text
    (options,) = fake.options
    assert (options.series, options.horizons_s, options.target, options.seed, options.evidence) == (
        Path("series.csv"),
        (600.0, 3600.0),
        "peak",
        4,
        None,
    )
    assert json.loads((folder / "out.json").read_text())["series"] == 3
    assert not (folder / "state").exists()
    text = said(capsys, "backtest", "runtimes", "--jobs", "jobs.csv")
    assert "0.400 (0.500)" in text
    assert "left at 1 h" in text


def test_requests_are_counted_in_steps(fake: FakeRun, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--requests wants a step."""
    (folder / "r.csv").write_text("t_s,service,input_tokens,output_tokens\n")
    said(capsys, "backtest", "bursts", "--requests", "r.csv", "--step", "10s")
    assert (fake.options[0].requests, fake.options[0].step_s) == (Path("r.csv"), 10.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bursts", "--series", "none.csv"), "no such file"),
        (("bursts", "--series", "series.csv", "--requests", "series.csv"), "name one file"),
        (("bursts", "--requests", "series.csv"), "--step"),
        (("bursts", "--series", "series.csv", "--step", "10s"), "median spacing"),
        (("bursts", "--series", "series.csv", "--target", "mean"), "value, peak"),
        (("bursts", "--series", "series.csv", "--horizons", "soon"), "--horizons"),
        (("bursts", "--series", "series.csv", "--horizons", ","), "1 to 12 horizons"),
        (("bursts", "--series", "series.csv", "--horizons", "10m,600s"), "listed once"),
        (("bursts", "--series", "series.csv", "--horizons", "0s"), "above 0"),
        (("bursts", "--series", "series.csv", "--json", "series.csv"), "is an input of this command"),
        (("bursts", "--series", "series.csv", "--json", "no/out.json"), "does not exist; create it first"),
        (("bursts", "--series", "series.csv", "--json", "."), "is a folder"),
        (("bursts", "--series", "series.csv", "--seed", "-1"), "--seed"),
        (("bursts", "--series", "series.csv", "--gate", "--registry", "series.csv"), "is a file"),
        (("bursts", "--target", "peak"), "name a file"),
        (("runtimes", "--jobs", "none.csv"), "no such file"),
        (("runtimes", "--seed", "3"), "--seed"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    fake: FakeRun, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    """One message with exit code 2, before anything runs."""
    assert words in said(capsys, "backtest", *arguments, code=2)
    assert fake.options == []


def test_without_a_file_the_golden_set_is_judged(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """The code is judged and no model is stored: those of the golden set are of no use elsewhere."""
    text = said(capsys, "backtest", "bursts", "--gate", "--registry", "r")
    assert fake.options[0].series == golden.golden_file("bursts")
    assert "gate: passed, against the floor" in text
    assert "stored" not in text
    fake.ratio = 1.2
    assert "gate: refused" in said(capsys, "backtest", "runtimes", "--gate", "--registry", "r", code=1)
    assert fake.options[1].jobs == golden.golden_file("runtimes")
    assert registry(Path("r")).versions("bursts") == []


def test_code_that_fails_on_the_golden_set_is_not_promoted(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """However good its models are on a record of one's own."""
    good = stored_version(said(capsys, "backtest", "bursts", "--series", "series.csv", "--gate"))
    judge_golden(fake, capsys, ratio=1.5)
    message = said(capsys, "models", "promote", good, "--why", "x", code=2)
    assert "the gate refused it on the golden set" in message


# --- the way to promotion ---------------------------------------------------------------------------


def test_from_the_gate_to_serving_and_back(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Passed, stored, promoted; a better one against it; rolled back."""
    gate = ("backtest", "bursts", "--series", "series.csv", "--gate")
    text = said(capsys, *gate)
    assert "gate: passed, against the floor; no version serves yet" in text
    first = stored_version(text)
    message = said(capsys, "models", "promote", first, "--why", "the first", code=2)
    assert "not judged on the golden set; run `autopilot backtest bursts --gate`" in message
    judge_golden(fake, capsys)
    assert "serves now" in said(capsys, "models", "promote", first, "--why", "the first", "--by", "ann")
    fake.ratio, fake.number = 0.5, 1
    text = said(capsys, *gate)
    assert f"gate: passed, against {first} and the floor" in text
    assert fake.options[-1].evidence.champion["ratio"] == 0.7
    second = stored_version(text)
    assert second in said(capsys, "models", "promote", second, "--why", "sharper", "--by", "ben")
    shown = " ".join(said(capsys, "models", "show", "bursts").split())
    for words in (
        second,
        "(serves)",
        "promoted",
        "by ben: sharper",
        f"parent: {first}",
        "trees 7",
        "lag_1",
        "600 pinball_p99 0.005",
        "1,000 rows x trees",
        "rows 12",
        f"against {first}: passed",
    ):
        assert words in shown, words
    assert f"{first} serves again; {second} does not" in said(capsys, "models", "rollback", "bursts", "--why", "pages")
    listed = said(capsys, "models", "list")
    assert [line.split()[0:2] for line in listed.splitlines()[1:]] == [[second, "bursts"], ["serves", first]]
    assert first in said(capsys, "models", "lineage", second)
    assert "parameters.trees" not in said(capsys, "models", "diff", first, second)


def test_lines_of_a_table_are_whole_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No column is cut: names are copied from here into the next command."""
    monkeypatch.setattr(run_commands.out, "_width", 12)
    run_commands.print_rows(("name", "wait"), [["a-long-name-of-a-run", "1 min"], ["b", "12 min"]], figures=True)
    assert capsys.readouterr().out.splitlines() == [
        "name                    wait",
        "a-long-name-of-a-run   1 min",
        "b                     12 min",
    ]


def test_a_refused_model_is_promoted_only_by_force(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """And the record says so; one that was judged against another version is asked again."""
    gate = ("backtest", "bursts", "--series", "series.csv", "--gate")
    fake.ratio = 1.3
    text = said(capsys, *gate, code=1)
    assert "gate: refused" in text
    bad = stored_version(text)
    assert "not judged on the golden set" in said(capsys, "models", "promote", bad, "--why", "hm", code=2)
    judge_golden(fake, capsys)
    assert "the gate refused it: bursts 600 s" in said(capsys, "models", "promote", bad, "--why", "hm", code=2)
    fake.ratio, fake.number = 0.8, 1
    early = stored_version(said(capsys, *gate))
    assert bad in said(capsys, "models", "promote", bad, "--why", "an experiment", "--by", "cy", "--force")
    assert "forced" in said(capsys, "models", "show", bad)
    message = said(capsys, "models", "promote", early, "--why", "good", code=2)
    assert "judged against another version" in message
    assert early not in [line.split()[1] for line in said(capsys, "models", "list").splitlines() if "serves" in line]
    never = registry(Path("state/gpu-autopilot/registry"), libraries=None).put(
        {"model": "x", "a": 1}, manifest(libraries={})
    )
    assert "the gate has not judged it" in said(capsys, "models", "promote", never.version[:12], "--why", "x", code=2)


def test_a_champion_that_was_not_compared_is_not_beaten(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Its place is taken by force alone: the floor is another opponent."""
    gate = ("backtest", "bursts", "--series", "series.csv", "--gate")
    judge_golden(fake, capsys)
    first = stored_version(said(capsys, *gate))
    said(capsys, "models", "promote", first, "--why", "the first")
    fake.ratio, fake.unscored = 0.5, "it foresees peaks"
    text = said(capsys, *gate)
    assert "gate: passed, against the floor alone" in text
    assert "could not be scored here: it foresees peaks" in text
    second = stored_version(text)
    assert "against the floor alone: passed" in said(capsys, "models", "show", second)
    told = said(capsys, "models", "promote", second, "--why", "sharper", code=2)
    assert f"it was not compared with {first}, which serves now" in told
    assert "serves now" in said(capsys, "models", "promote", second, "--why", "another target", "--force")


def test_a_current_version_that_cannot_serve_stands_in_nobodys_way(
    fake: FakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is judged against what serves in its place is promoted over it."""
    gate = ("backtest", "bursts", "--series", "series.csv", "--gate", "--registry", "r")
    said(capsys, "backtest", "bursts", "--gate", "--registry", "r")
    first = stored_version(said(capsys, *gate))
    said(capsys, "models", "promote", first, "--why", "the first", "--registry", "r")
    shelf = registry(Path("r"), libraries=None)
    shelf.blob_path(shelf.find("bursts").artifact).write_bytes(b"x")
    fake.number = 1
    text = said(capsys, *gate)
    assert f"skipped {first}" in text
    second = stored_version(text)
    assert f"{second} serves now" in said(
        capsys, "models", "promote", second, "--why", "it can serve", "--registry", "r"
    )


def test_what_was_measured_is_written_though_the_registry_refuses(
    fake: FakeRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be written at all is told before the run; one that refuses later costs no result."""
    gate = ("backtest", "bursts", "--series", "series.csv", "--gate", "--registry", "r", "--json", "out.json")
    (Path("r") / "lock").mkdir(parents=True)
    assert "r: the registry cannot be written" in said(capsys, *gate, code=2)
    assert fake.options == []
    (Path("r") / "lock").rmdir()
    (Path("r") / "blobs").write_text("a file, where a folder belongs")
    said(capsys, *gate, code=2)
    assert json.loads(Path("out.json").read_text())["series"] == 3


def test_the_same_gate_again_writes_the_same(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Idempotent by (run, case): the same version, the same files, untouched."""
    gate = ("backtest", "bursts", "--series", "series.csv", "--gate", "--registry", "r")
    first = said(capsys, *gate)
    before = {path: path.stat().st_mtime_ns for path in Path("r").rglob("*") if path.is_file() and path.name != "lock"}
    assert stored_version(said(capsys, *gate)) == stored_version(first)
    after = {path: path.stat().st_mtime_ns for path in Path("r").rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before


def test_a_champion_that_cannot_be_loaded_is_passed_over(fake: FakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """The gate names it and judges against what serves in its place."""
    made, names = stocked(Path("r"), 2, libraries=None)
    made.blob_path(made.manifest("bursts", names[1]).artifact).write_bytes(b"x")
    made.blob_path(made.manifest("bursts", names[0]).artifact).write_bytes(b"x")
    text = said(capsys, "backtest", "bursts", "--series", "series.csv", "--gate", "--registry", "r")
    assert f"skipped {names[1][:12]}" in text
    assert "against the floor" in text


# --- models -----------------------------------------------------------------------------------------


def test_an_empty_registry_is_no_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Listing makes no folder; what names a version finds none."""
    assert "no versions yet" in said(capsys, "models", "list")
    assert json.loads(said(capsys, "models", "list", "--json"))["bursts"] == []
    assert not (folder / "state").exists()
    assert "no version serves" in said(capsys, "models", "show", "bursts", code=2)
    assert "no version starts with this" in said(capsys, "models", "show", "abcdef", code=2)
    assert "is not one of bursts, runtimes" in said(capsys, "models", "list", "--kind", "x", code=2)
    assert "no version before" in said(capsys, "models", "rollback", "bursts", code=2)


def test_json_for_other_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """list, show, diff and lineage."""
    _, names = stocked(Path("r"), 3, libraries=None)
    where = ("--json", "--registry", "r")
    listed = json.loads(said(capsys, "models", "list", *where))
    assert [each["version"] for each in listed["bursts"]] == names[::-1]
    assert [each["current"] for each in listed["bursts"]] == [True, False, False]
    shown = json.loads(said(capsys, "models", "show", "bursts", *where))
    assert (shown["version"], shown["current"], shown["promotions"][0]["why"]) == (names[2], True, "number 2")
    assert json.loads(said(capsys, "models", "diff", names[0], names[1], *where))["differs"]["seed"] == [0, 1]
    line = json.loads(said(capsys, "models", "lineage", names[2], *where))
    assert [each["version"] for each in line["lineage"]] == names[::-1]


def test_gc_says_what_it_drops(capsys: pytest.CaptureFixture[str]) -> None:
    """First without doing it."""
    made, names = stocked(Path("r"), 4)
    artifact = made.manifest("bursts", names[0]).artifact
    for words, there in (("would drop 2 artifacts", True), ("dropped 2 artifacts", False)):
        dry = ("--dry-run",) if there else ()
        text = said(capsys, "models", "gc", "--keep", "2", *dry, "--registry", "r")
        assert words in text
        assert artifact[:12] in text
        assert made.blob_path(artifact).exists() == there
    assert "must be 1 or more" in said(capsys, "models", "gc", "--keep", "0", "--registry", "r", code=2)


def test_what_is_damaged_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is listed as ever."""
    made, names = stocked(Path("r"), 2, libraries=None)
    (Path("r") / "models" / "bursts" / f"{names[0]}.json").write_text("{")
    made.blob_path(made.manifest("bursts", names[1]).artifact).write_bytes(b"x")
    text = said(capsys, "models", "list", "--registry", "r")
    assert f"damaged: {names[0][:12]}" in text
    assert "cannot serve:" in said(capsys, "models", "show", names[1][:12], "--registry", "r")


def test_a_damaged_version_does_not_serve(capsys: pytest.CaptureFixture[str]) -> None:
    """The list says which one serves in its place, as a controller would find it."""
    made, names = stocked(Path("r"), 2, libraries=None)
    for name in names:
        made.promote("bursts", name, by="ann", why="a try")
    assert f"serves        {names[1][:12]}".split() == _listed(capsys)[0]
    made.blob_path(made.manifest("bursts", names[1]).artifact).write_bytes(b"x")
    assert _listed(capsys) == [["cannot", "serve", names[1][:12]], ["serves", names[0][:12]]]
    assert "(serves)" not in said(capsys, "models", "show", names[1][:12], "--registry", "r")
    document = json.loads(said(capsys, "models", "list", "--registry", "r", "--json"))
    assert [(each["current"], each["serves"]) for each in document["bursts"]] == [
        (True, False),
        (False, True),
    ]
    assert document["damaged"][0]["name"] == names[1]


def _listed(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Mark and version of each line of the list."""
    lines = said(capsys, "models", "list", "--registry", "r").splitlines()[1:]
    return [line.split("  bursts ")[0].split() for line in lines if "  bursts " in line]
