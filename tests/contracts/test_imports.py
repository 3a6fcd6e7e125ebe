"""No module imports itself through others, and what runs in a cluster imports no test bench."""

from __future__ import annotations

import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract

ROOTS = ("autopilot", "collectors", "models", "actuators", "simulator", "apiserver")
CORE = "autopilot.core."

Imports = dict[str, set[str]]


@cache
def graph(*, types: bool) -> grimp.ImportGraph:
    """The imports of all modules, `types`: also those that stand under TYPE_CHECKING."""
    return grimp.build_graph(*ROOTS, exclude_type_checking_imports=not types, cache_dir=None)


def imports(*, types: bool) -> Imports:
    """Which modules each module imports, `types`: outside of the core, which has ties of types inside its packages."""
    found = graph(types=types)
    names = {name for name in found.modules if not (types and name.startswith(CORE))}
    return {name: set(found.find_modules_directly_imported_by(name)) for name in names}


def cycle(of: Imports) -> list[str]:
    """The modules of one cycle, the first again as the last; [] where there is none."""
    try:
        TopologicalSorter(of).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_when_they_run() -> None:
    """Imports of modules form no cycle."""
    assert cycle(imports(types=False)) == []


def test_no_types_refer_to_each_other_across_modules() -> None:
    """Imports under TYPE_CHECKING close no cycle either, outside of the core."""
    assert cycle(imports(types=True)) == []


@pytest.mark.parametrize("types", [False, True])
def test_a_planted_cycle_is_found(*, types: bool) -> None:
    """An import that closes a cycle is reported with the modules of the cycle."""
    planted = imports(types=types)
    planted["apiserver.requests"].add("apiserver.server")
    found = cycle(planted)
    assert {"apiserver.requests", "apiserver.server"} <= set(found), found


@pytest.mark.parametrize(
    ("importer", "imported", "kept"),
    [
        ("autopilot.operate.watchdog", "autopilot.service.settings", True),
        ("autopilot.service.site", "simulator.serving.client", False),
        ("autopilot.contract.tree", "apiserver.quantity", False),  # reached through others
        ("actuators.kubernetes.api", "autopilot.playground.steps", False),
    ],
)
def test_what_runs_in_a_cluster_imports_no_test_bench(importer: str, imported: str, *, kept: bool) -> None:
    """Contract 4 holds, and a planted import of the simulator, the test server or the playground breaks it."""
    configure()
    tool = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    stated = next(each for each in tool["contracts"] if each["name"].startswith("4."))
    contract = ForbiddenContract(stated["name"], {"root_packages": tool["root_packages"]}, stated)
    planted = grimp.build_graph(*ROOTS, cache_dir=None)
    planted.add_import(importer=importer, imported=imported)
    assert contract.check(planted, verbose=False).kept is kept
