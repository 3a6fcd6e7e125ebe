"""The runs of a comparison: one case for each cluster, change of it, policy and seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from importlib.metadata import version as version_of
from itertools import product
from pathlib import Path

from autopilot.app.options import SimulateOptions, check_slurm
from autopilot.app.runs.named import check_policies, values_of
from autopilot.app.runs.pages import input_digest
from autopilot.app.runs.world import World, build_world
from autopilot.core.model.errors import InputError
from simulator.plugins.code import code_digest
from simulator.scenarios import load_scenario

UNCHANGED = "unchanged"
MOST_SEEDS = 1000
SOURCES = ("autopilot", "collectors", "models", "simulator")
LIBRARIES = ("numpy", "scipy", "scikit-learn", "statsmodels", "pandas")
"""Libraries whose version may move a figure."""

_RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One call of `compare`. `base` has the input and the settings of every run."""

    base: SimulateOptions
    policies: tuple[str, ...] = ()  # (): those of the input
    seeds: tuple[int, ...] = (1,)
    clusters: tuple[str | None, ...] = (None,)  # None: that of the input
    changes: tuple[tuple[str, ...], ...] = ()  # besides the unchanged cluster, each with all changes of one variation


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run. `cluster` and `change` are as shown, `change` is `UNCHANGED` for none."""

    cluster: str
    change: str
    policy: str
    seed: int
    options: SimulateOptions


@dataclass(frozen=True, slots=True)
class Checked:
    """The cases of a comparison after its input was read without an error, and their worlds."""

    cases: tuple[Case, ...]
    policies: tuple[str, ...]  # as shown
    worlds: dict[tuple[str, str], World]  # by cluster and change, with the first seed


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from a count (`5`: 1 to 5), a range (`10-19`) or a list (`3,5,8`). Raises `InputError`."""
    words = text.replace(" ", "")
    found = _RANGE.fullmatch(words)
    if found:
        seeds: Sequence[int] = range(int(found[1]), int(found[2]) + 1)
    elif words.isdigit() and len(words) < 6:
        seeds = range(1, int(words) + 1)
    elif all(part.isdigit() and len(part) <= 18 for part in words.rstrip(",").split(",")):
        seeds = sorted({int(part) for part in words.rstrip(",").split(",")})
    else:
        raise InputError(f"--seeds: {text!r} is not allowed; write a count (5), a range (10-19) or a list (3,5,8)")
    if not 0 < len(seeds) <= MOST_SEEDS:
        raise InputError(f"--seeds: {text!r} names {len(seeds):,} seeds; write 1 to {MOST_SEEDS:,}")
    return tuple(seeds)


def check(comparison: Comparison) -> Checked:
    """Read every input once, before anything runs. Raises `InputError` naming the flag, file or field."""
    base = replace(comparison.base, series=False, seed=comparison.seeds[0])
    worlds: dict[tuple[str, str], World] = {}
    cases: list[Case] = []
    shown: tuple[str, ...] = ()
    for cluster, changes in product(comparison.clusters, ((), *comparison.changes)):
        options = replace(base, cluster=cluster if cluster is not None else base.cluster, changes=changes)
        world = build_world(options)
        place = (cluster_name(options, world), ", ".join(changes) or UNCHANGED)
        if place in worlds:
            raise InputError(f"--cluster, --set: {', '.join(place)} is named twice; leave one out")
        worlds[place] = world
        names = comparison.policies or world.policies
        where = "--policy" if comparison.policies else f"scenario {world.title}: policies"
        found = check_policies(names, where, world.names, values_of(options, world))
        check_slurm(base.slurm, names)
        shown = shown or tuple(found)
        for seed, (label, name) in product(comparison.seeds, zip(found, dict.fromkeys(names), strict=True)):
            site = options.slurm if name == "slurm" else None
            one = replace(options, policies=(name,), seed=seed, slurm=site)
            cases.append(Case(cluster=place[0], change=place[1], policy=label, seed=seed, options=one))
    return Checked(tuple(cases), shown, worlds)


def cluster_name(options: SimulateOptions, world: World) -> str:
    """The cluster as shown: the given shape or file name, else the title of the scenario."""
    return Path(options.cluster).name if options.cluster is not None else world.title


def digest_of(options: SimulateOptions) -> str:
    """Sixteen hexadecimal digits of all inputs of a result: flags, input files, source, libraries, and the code of a
    registered policy.
    """
    parts = [input_digest(options), source_version(), *map(_content, _named_in_scenario(options.scenario))]
    parts += map(code_digest, options.policies)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@cache
def source_version() -> str:
    """A digest of the source and data of this product and of the versions of its numeric libraries."""
    digest = hashlib.sha256(json.dumps([(name, version_of(name)) for name in LIBRARIES]).encode())
    for package in SOURCES:
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".yaml", ".json"} and path.is_file():
                digest.update(f"{package}/{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _named_in_scenario(scenario: str | None) -> tuple[Path, ...]:
    """The files named by a scenario file; its own content is part of the digest anyway."""
    if scenario is None or not Path(scenario).is_file():
        return ()
    found = load_scenario(scenario)
    named = (found.file_jobs.path if found.file_jobs is not None else None, Path(found.cluster.source))
    return tuple(path for path in named if path is not None and path.is_file())


def _content(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
