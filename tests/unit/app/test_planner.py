"""The smallest cluster, recorded journals as input, and the Python API."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from autopilot import api
from autopilot.app.compare.from_journal import from_journal
from autopilot.app.compare.sizing import smallest
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import simulate
from autopilot.cli import main
from autopilot.core.model.errors import InputError
from tests.tidy.tree import ROOT

HEADER = "job_id,tenant,submit_s,duration_s,gpus\n"
ROWS = "".join(f"j{n},t,{60 * n},{900 + n},{(4, 8)[n % 2]}\n" for n in range(8))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a job file and a state folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "jobs.csv").write_text(HEADER + ROWS)
    return tmp_path


CALM = ("modes.preempt=off", "modes.defragment=off", "modes.reclaim_borrowed=off")


def call(*arguments: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


@pytest.mark.parametrize("first", [1, 2, 7, 30, 64])
@pytest.mark.parametrize("answer", [1, 2, 13, 63, 64])
def test_the_search_finds_the_least_size_from_any_start(first: int, answer: int) -> None:
    """A few runs, with the size below and above among them."""
    ran: list[int] = []

    def measure(nodes: int) -> Sequence[float]:
        ran.append(nodes)
        return (10.0, 100.0 / nodes * answer)

    sized = smallest(measure, 100.0, first, 1, 64)
    assert sized.nodes == answer
    assert len(ran) == len(set(ran)) <= 16
    assert answer == 1 or answer - 1 in ran
    assert sized.checked == (answer < 64)


def test_one_seed_that_misses_is_enough_and_luck_is_noticed() -> None:
    """Every seed must meet the target; a size that meets it below one that misses is not the answer."""
    waits = {1: 9.0, 2: 9.0, 3: 1.0, 4: 9.0, 5: 1.0, 6: 1.0}
    sized = smallest(lambda nodes: (0.0, waits.get(nodes, 1.0)), 5.0, 3, 1, 8)
    assert (sized.nodes, sized.uneven, sized.checked) == (5, (4,), True)
    assert smallest(lambda _: (0.0, float("inf")), 5.0, 3, 1, 8).nodes is None


def test_the_command_says_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    """The sizes with the wait of the worst seed, and the answer with its price."""
    given = ("size", "--jobs", "jobs.csv", "--cluster", "1x8", "--telemetry", "off", "--workers", "1", "--seeds", "1")
    assert call(*given, "--policy", "fifo,fifo-skip", "--wait-p90", "10m", "--price", "2") == 0
    printed = capsys.readouterr().out
    found = re.search(r"fifo: (\d+) nodes \((\d+) GPUs\), ([\d.]+) USD an hour; (\d+) nodes miss", printed)
    assert found is not None
    assert int(found[4]) == int(found[1]) - 1
    assert float(found[3]) == 16.0 * int(found[1])
    assert call(*given, "--policy", "fifo", "--wait-p90", "10m", "--to", "2", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["policies"]["fifo"]["nodes"] is None
    assert [each["nodes"] for each in document["policies"]["fifo"]["tries"]] == [1, 2]
    for more, words in (
        (("--wait-p90", "soon"), "--wait-p90: 'soon' is not a duration"),
        (("--wait-p90", "1m", "--pool", "defalt"), "did you mean default?"),
        (("--wait-p90", "1m", "--from", "9", "--to", "3"), "write 1 to"),
    ):
        assert call(*given, *more) == 2
        assert words in capsys.readouterr().err


def test_a_cluster_is_not_made_smaller_than_its_guarantees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The search begins where the cluster file still holds."""
    (tmp_path / "c.yaml").write_text(
        "pools: [{name: a, nodes: 4, gpus_per_node: 8, gpu_model: H100-80GB}]\n"
        "queues: [{name: t, guarantee: {H100-80GB: 20}}]\n"
    )
    given = ("size", "--jobs", "jobs.csv", "--cluster", "c.yaml", "--telemetry", "off", "--workers", "1")
    assert call(*given, "--seeds", "1", "--policy", "fifo-skip", "--wait-p90", "9h") == 0
    said = capsys.readouterr()
    assert "from 3 nodes on" in said.err
    assert "fifo-skip: 3 nodes (24 GPUs)" in said.out


def test_a_journal_becomes_jobs_and_a_cluster(tmp_path: Path) -> None:
    """Every job with its true run time, to within its start-up, and the same GPUs; the same policy does alike. What it
    allows beside it stays.
    """
    shared = "".join(f"{row}{',trusted,pair,lab/a:1' if row.endswith(',4') else ',,,'}\n" for row in ROWS.splitlines())
    (tmp_path / "jobs.csv").write_text(f"{HEADER.strip()},trust,share,image\n{shared}")
    (tmp_path / "c.yaml").write_text(
        "pools:\n"
        "  - {name: a, nodes: 1, gpus_per_node: 8, gpu_model: H100-80GB}\n"
        "  - name: b\n    nodes: 1\n    gpus_per_node: 4\n    gpu_model: A100-80GB\n"
        "    mig: [{gpus_per_node: 1, geometry: {1g.10gb: 7}}]\n"
        "queues: [{name: t, guarantee: {H100-80GB: 4}, weight: 2, limit: 10}]\n"
    )
    options = SimulateOptions(
        jobs=tmp_path / "jobs.csv",
        cluster="c.yaml",
        policies=("autopilot",),
        policy_set=CALM,
        telemetry="off",
        durations="exact",
        journal=tmp_path / "run.journal",
        series=False,
    )
    original = simulate(options).policies[0]
    found = from_journal(tmp_path / "run.journal", tmp_path / "made")
    jobs = pd.read_parquet(found.jobs)
    submitted = dict(zip(original.simulated.cluster.jobs.id, original.simulated.cluster.jobs.duration_s, strict=True))
    assert {row.job_id: row.duration_s for row in jobs.itertuples()} == pytest.approx(submitted, abs=1.0)
    stated = {(row.gpus, row.trust, row.share, row.image) for row in jobs.itertuples()}
    assert stated == {(4, "trusted", "pair", "lab/a:1"), (8, "", "", "")}
    again = api.simulate(api.load(tmp_path / "run.journal", telemetry="off", durations="exact"), policy_set=CALM)
    for figure in ("finished", "queue_wait_s_mean", "jct_s_mean"):
        assert again.result["jobs"][figure] == pytest.approx(original.result["jobs"][figure], rel=0.01)
    assert again.result["gpu_s"]["capacity"] == pytest.approx(original.result["gpu_s"]["capacity"], rel=0.01)
    assert "limit: 10" in found.cluster.read_text()
    with pytest.raises(InputError, match="no such journal"):
        api.load("absent.journal")


def test_a_scenario_beside_a_journal_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The journal has jobs of its own."""
    assert call("compare", "--journal", "x.journal", "--scenario", "demo") == 2
    assert "leave out --scenario" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("python-api.md", ("fifo-skip instead of fifo", "did you mean fifo-skip?")),
        ("research.md", ("half-ratio", "evictions")),
    ],
)
def test_the_examples_of_the_page_run(page: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of a page, in order, in one name space."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    printed = capsys.readouterr().out
    assert not [each for each in words if each not in printed]
    assert len(blocks) >= 3


def test_the_api_gives_the_figures_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The same runs, by Python and by command line."""
    jobs = api.load("jobs.csv", cluster="1x8", telemetry="off")
    found = api.compare(jobs, policies=["fifo", "fifo-skip"], seeds=[1], workers=1)
    given = ("compare", "--jobs", "jobs.csv", "--cluster", "1x8", "--telemetry", "off", "--policy", "fifo,fifo-skip")
    assert call(*given, "--seeds", "1,", "--workers", "1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert [run["result"] for run in document["runs"]] == [record["result"] for record in found.records]
    table = api.to_pandas(found)
    assert set(table["policy"]) == {"fifo", "fifo-skip"}
    assert len(table) == len(found.groups[0].rows) * 2
