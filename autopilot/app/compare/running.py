"""Runs the cases of a comparison in processes and keeps each finished run: an interrupted comparison continues."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import joblib

from autopilot.app.compare.cases import Case, digest_of
from autopilot.app.options import SimulateOptions
from autopilot.app.runs.simulate import SimulationOutcome, simulate
from autopilot.core.model.errors import InputError
from autopilot.files import check_folder, write_bytes
from simulator.plugins.code import packed, unpack

SCHEMA = "gpu-autopilot/comparison-run/1"

CONNECTS_WITHIN_S = 10.0

Record = dict[str, Any]
"""What is kept of one run: `pools` of its cluster, its block of the simulation's document, how far it reproduces the
starts in the job file, and the time it took.
"""
Done = Callable[[int, int, str], None]
"""Called with (runs done, runs in total, the ended one)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The folder of finished runs: one file for each, named by the digest of its input and of the source."""

    folder: Path

    def load(self, digest: str) -> Record | None:
        """The run, or None for a missing or unreadable one: it then runs again."""
        try:
            record = json.loads((self.folder / f"{digest}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) and record.get("schema") == SCHEMA else None

    def save(self, digest: str, record: Mapping[str, Any]) -> None:
        """Keep one run. Raises `InputError` if the folder cannot be written."""
        write_bytes(json.dumps(record, allow_nan=False).encode(), self.folder / f"{digest}.json")

    def check(self) -> None:
        """Raise `InputError` for a folder without write access, before anything runs."""
        check_folder(self.folder, "--results")


def workers_for(runs: int, wanted: int | None) -> int:
    """Processes to run in: at most the cores of this machine, and no more than there are runs."""
    cores = joblib.cpu_count()
    if wanted is not None and not 1 <= wanted <= cores:
        raise InputError(f"--workers: {wanted!r} is not allowed; write 1 to {cores}, the cores of this machine")
    return max(min(wanted or cores, runs), 1)


def run_all(
    cases: Sequence[Case], kept: Kept, workers: int | None = None, done: Done | None = None, dask: str | None = None
) -> list[Record]:
    """The record of each case, in order. The same cases give the same records with any number of workers.

    `dask`: address of a Dask scheduler, for runs on its workers; they read the files at the same paths.

    Kept runs are not repeated. Ctrl-C raises `KeyboardInterrupt`; runs finished until then are kept.
    """
    digests = [digest_of(case.options) for case in cases]
    records = {digest: found for digest in dict.fromkeys(digests) if (found := kept.load(digest)) is not None}
    missing = {digest: case for digest, case in zip(digests, cases, strict=True) if digest not in records}
    if done is not None and records:
        done(len(records), len(records) + len(missing), f"{len(records)} kept from before")
    if missing:
        kept.check()
    total = len(records) + len(missing)
    ended = _on_dask(missing, dask) if dask is not None else _parallel(missing, workers_for(len(missing), workers))
    for digest, record in ended:
        kept.save(digest, record)
        records[digest] = record
        if done is not None:
            case = missing[digest]
            done(len(records), total, f"{case.policy}, seed {case.seed}")
    return [records[digest] for digest in digests]


def _parallel(missing: Mapping[str, Case], workers: int) -> Iterator[tuple[str, Record]]:
    """Each case as it ends, with its digest. The processes are kept for the next call and stay in their folder, so they
    get absolute paths.
    """
    codes = _codes(missing.values()) if workers > 1 else {}
    calls = (joblib.delayed(_run_one)(digest, absolute(case.options), codes) for digest, case in missing.items())
    try:
        yield from joblib.Parallel(n_jobs=workers, batch_size=1, return_as="generator_unordered")(calls)
    except BrokenProcessPool as error:
        raise InputError(
            f"--workers: a process of the comparison died ({str(error).splitlines()[0]}): it ran out of memory, or a "
            "registered policy ended it; run it with one worker"
        ) from error


def _codes(cases: Iterable[Case]) -> dict[str, bytes]:
    """The registered policies among those of the cases, for other processes."""
    names = dict.fromkeys(name for case in cases for name in case.options.policies)
    return {name: code for name in names if (code := packed(name)) is not None}


def _on_dask(missing: Mapping[str, Case], address: str) -> Iterator[tuple[str, Record]]:
    """Each case as it ends, run by the workers of a Dask cluster. Raises `InputError` if none answers."""
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise InputError("--dask: the package distributed is absent; install gpu-autopilot[dask]") from error
    try:
        client = distributed.Client(address, timeout=CONNECTS_WITHIN_S)
    except (OSError, ValueError) as error:
        raise InputError(
            f"--dask: {address}: no Dask scheduler answers: {error}; write its address, for example tcp://10.0.0.1:8786"
        ) from error
    with client:
        codes = _codes(missing.values())
        futures = [client.submit(_run_one, digest, absolute(case.options), codes) for digest, case in missing.items()]
        try:
            for future in distributed.as_completed(futures):
                yield future.result()
        finally:
            client.cancel(futures)


def absolute(options: SimulateOptions) -> SimulateOptions:
    """The options with absolute paths: a worker has another working folder."""
    given = {each.name: getattr(options, each.name) for each in fields(options)}
    paths: dict[str, Any] = {name: value.resolve() for name, value in given.items() if isinstance(value, Path)}
    named = {name: given[name] for name in ("cluster", "scenario") if isinstance(given[name], str)}
    paths |= {name: str(Path(value).resolve()) for name, value in named.items() if Path(value).is_file()}
    policies = (
        str(Path(name).resolve()) if Path(name).suffix in {".yaml", ".yml"} else name for name in options.policies
    )
    return replace(options, **paths, policies=tuple(policies))


def _run_one(digest: str, options: SimulateOptions, codes: Mapping[str, bytes]) -> tuple[str, Record]:
    for name in options.policies:
        if name in codes:
            unpack(name, codes[name])
    return digest, run_case(options)


def run_case(options: SimulateOptions) -> Record:
    """Simulate one policy. The record does not depend on the machine, apart from `wall_s`."""
    return record_of(run(options))


def run(options: SimulateOptions) -> SimulationOutcome:
    """Simulate one policy. Raises `KeyboardInterrupt` if it was interrupted."""
    outcome = simulate(options)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def record_of(outcome: SimulationOutcome) -> Record:
    """The kept part of a run."""
    result = dict(outcome.policies[0].result)
    return {
        "schema": SCHEMA,
        "pools": [
            {"name": pool.name, "gpu_model": pool.gpu_model, "gpus": pool.gpus} for pool in outcome.world.spec.pools
        ],
        "result": {name: value for name, value in result.items() if name != "wall_s"},
        "reproduced": outcome.policies[0].reproduced,
        "wall_s": result["wall_s"],
    }
