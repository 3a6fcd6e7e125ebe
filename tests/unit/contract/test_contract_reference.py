"""The page of the workload contract is what the tree says, and its examples can be used."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import yaml

from autopilot.contract import Contract, Facts, Level, contract_fields, parse_contract
from autopilot.contract.rules import RULES
from autopilot.core.model.snapshot import SloClass
from simulator.specs.clusterfile import shape_cluster
from simulator.specs.inventory import build_inventory
from simulator.traces.columns import JOB_COLUMNS
from simulator.traces.jobs import read_jobs
from simulator.world.work import jobs_from_trace

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "workload-contract.md"


def reference() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("page", ROOT / "scripts/generate_contract_reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(language: str) -> list[str]:
    """The code blocks of the page in that language."""
    parts = PAGE.read_text(encoding="utf-8").split(f"```{language}\n")[1:]
    return [part.split("```")[0] for part in parts]


def test_the_page_is_what_the_tree_says() -> None:
    """docs/workload-contract.md is up to date; if not: python scripts/generate_contract_reference.py."""
    assert PAGE.read_text(encoding="utf-8") == reference().render()


def test_the_page_has_every_field_and_every_rule() -> None:
    """A row for each annotation, with its column and what is assumed, and a line for each contradiction."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    for found in contract_fields():
        row = next(line for line in lines if line.startswith(f"| `{found.key}` |"))
        assert row.endswith(f"| `{found.stated.column}` |" if found.stated.column else "| - |")
        assert found.stated.absent.replace("|", "\\|") in row
    assert sum(line.startswith("- ") for line in lines) >= len(RULES)
    assert all(" ".join((rule.__doc__ or "").split()) in "\n".join(lines) for rule in RULES)


def test_the_check_sees_a_change(tmp_path: Path) -> None:
    """--check passes on what the script wrote and fails, writing nothing, on anything else."""
    page = tmp_path / "page.md"
    main = reference().main
    assert main(["--target", str(page)]) == 0
    assert main(["--check", "--target", str(page)]) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("1 ms", "1 s"), encoding="utf-8")
    before = page.read_bytes()
    assert main(["--check", "--target", str(page)]) == 1
    assert page.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]


def test_the_manifests_of_the_page_are_contracts() -> None:
    """Both examples can be used, beside the pods that they describe, and mean what the text says."""
    job, replica = (yaml.safe_load(block) for block in blocks("yaml"))
    found = parse_contract(job["metadata"]["annotations"], Facts(members=job["spec"]["parallelism"]))
    assert isinstance(found, Contract)
    assert (found.gpus, found.min_gpus, found.place.preferred_topology) == (64, 32, Level.LEAF)
    assert (found.checkpoint.interval_s, found.checkpoint.write_s) == (1800, 90)
    service = parse_contract(replica["metadata"]["annotations"])
    assert isinstance(service, Contract)
    assert service.service.slo_class == SloClass.LATENCY_CRITICAL
    assert not service.preemption.preemptible


def test_the_row_of_the_page_is_the_job_of_its_manifest(tmp_path: Path) -> None:
    """The example of a job file is read, and makes the same gang."""
    path = tmp_path / "jobs.csv"
    path.write_text(blocks("csv")[0], encoding="utf-8")
    trace = read_jobs(path)
    shape = jobs_from_trace(trace, build_inventory(shape_cluster(8, 8))).shape_of(0)
    assert (shape.gpus, shape.per_member, shape.min_gpus) == (64, 8, 32)
    assert (trace.checkpoint_interval_s[0], trace.limit_s[0]) == (1800, 259_200)
    assert trace.unusable == 0


def test_the_page_of_job_files_has_every_column() -> None:
    """docs/data-sources.md lists the columns that are read, in their order, each with its meaning."""
    text = (ROOT / "docs" / "data-sources.md").read_text(encoding="utf-8")
    table = text.split("| column | meaning |\n|---|---|\n")[1].split("\n\n")[0].splitlines()
    assert len(table) == len(JOB_COLUMNS)
    for line, column in zip(table, JOB_COLUMNS, strict=True):
        name, about = (cell.strip() for cell in line.strip("|").split("|"))
        assert name == f"`{column.name}`" + ("" if column.required else "?")
        words = about.replace("a vertical bar", "|").split(" (")[0]
        assert words == column.about.split(" (")[0]
        assert all(word in about for word in column.allowed)
