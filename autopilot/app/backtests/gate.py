"""The gate after a backtest: reads the champion from the registry, records the verdict, stores the candidate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import numpy as np

from autopilot.app.backtests.backtest_options import GateEvidence
from autopilot.registry import Manifest, Registry, VerdictBook, run_name
from autopilot.registry.book import SUMMARY
from models.backtest import METRIC_VERSION, CaseVerdict, GateRules, GateVerdict, judge

NO_SCORES = frozenset({"chosen", "floor", "left_out_by_reason", "assumed_by_reason"})
"""Parts of a backtest's document other than scores of the model."""

BOOTSTRAP_SEED = 20_240_501
"""One seed for every verdict: equal losses give equal verdicts everywhere."""


def bootstrap_rng() -> np.random.Generator:
    """The generator for a verdict, freshly seeded."""
    return np.random.default_rng(BOOTSTRAP_SEED)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict and its subject."""

    run: str
    version: str  # of the candidate in the registry, or `code ...` if only code was judged
    champion: str  # version it was compared with; "" for none
    verdict: GateVerdict
    notes: tuple[str, ...]
    written: int  # cases missing from the book, or different in it


def open_evidence(registry: Registry, kind: str) -> tuple[GateEvidence, str, tuple[str, ...]]:
    """Empty evidence with the champion's content: (evidence, champion's version, notes on versions that cannot
    serve).
    """
    served = registry.serve(kind)
    notes = tuple(f"skipped {name[:12]}: {problem}" for name, problem in served.refused)
    if served.manifest is None:
        return GateEvidence(), "", notes
    evidence = GateEvidence(champion=served.content, champion_schema=served.manifest.feature_schema)
    return evidence, served.manifest.version, notes


@cache
def code_version() -> str:
    """Version of this package, and a digest of the source of the models as of the first call."""
    digest = sha256()
    for each in sorted(resources.files("models").iterdir(), key=lambda file: file.name):
        if each.name.endswith(".py"):
            digest.update(each.name.encode())
            digest.update(each.read_bytes())
    return f"{metadata.version('gpu-autopilot')}+{digest.hexdigest()[:12]}"


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    digest = sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def judge_models(
    kind: str,
    registry: Registry,
    evidence: GateEvidence,
    champion: str,
    document: Mapping[str, Any],
    data: Mapping[str, Any],
    setting: Mapping[str, Any],
    seed: int,
    by: str,
    *,
    store: bool,
    rules: GateRules | None = None,
) -> Judged:
    """Judge the evidence of a backtest, record the verdict of each case, and store the candidate.

    `data` names and digests the file; `setting` holds the other options of the run. Without `store` (the golden set,
    whose models serve no cluster) the code is judged, and nothing is stored.
    """
    rules = rules or GateRules()
    verdict = judge(evidence.cases, evidence.counted_work, bootstrap_rng(), rules)
    candidate = None
    if evidence.artifact is not None:
        candidate = Candidate(
            evidence.artifact,
            {**evidence.data, **data},
            evidence.feature_schema,
            {**evidence.parameters, **setting},
            scores_of(document),
            evidence.counted_work,
            seed,
            by,
        )
    notes: list[str] = []
    if store and candidate is None:
        notes.append("the backtest fitted no model that could be stored; the code was judged")
    if evidence.champion_problem:
        notes.append(f"the champion could not be scored here: {evidence.champion_problem}")
    version, run, written = write_verdict(
        kind, registry, verdict, candidate if store else None, champion, data, setting, rules
    )
    return Judged(run, version, champion, verdict, tuple(notes), written)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fitted model as the registry stores it: content and manifest."""

    artifact: Mapping[str, Any]
    data: Mapping[str, Any]
    feature_schema: tuple[str, ...]
    parameters: Mapping[str, Any]
    scores: Mapping[str, float]
    counted_work: int
    seed: int
    by: str


def write_verdict(
    kind: str,
    registry: Registry,
    verdict: GateVerdict,
    candidate: Candidate | None,
    champion: str,
    data: Mapping[str, Any],
    setting: Mapping[str, Any],
    rules: GateRules,
) -> tuple[str, str, int]:
    """Store the candidate (None: the code was judged) and each case of the verdict: (version, run, cases written).

    Raises `RegistryError` where the disk fails.
    """
    code = code_version()
    version = f"code {code}"
    if candidate is not None:
        manifest = Manifest(
            kind=kind,
            model=str(candidate.artifact.get("model", kind)),
            artifact="",
            artifact_bytes=0,
            data=candidate.data,
            feature_schema=candidate.feature_schema,
            parameters=candidate.parameters,
            libraries={},
            code=code,
            seed=candidate.seed,
            scores=candidate.scores,
            counted_work=candidate.counted_work,
            parent=champion,
            created_by=candidate.by,
        )
        version = registry.put(candidate.artifact, manifest).version
    book = VerdictBook(registry.folder)
    run = run_name(
        kind=kind,
        version=version,
        champion=champion,
        data=data["digest"],
        metric=METRIC_VERSION,
        setting=dict(setting),
        rules=_plain(asdict(rules)),
        seed=BOOTSTRAP_SEED,
    )
    written = sum(book.write(run, f"{each.case}, {each.group}", _case(each)) for each in verdict.cases)
    summary = {
        "kind": kind,
        "version": version,
        "champion": champion,
        "data": data["name"],
        "code": code,
        "data_digest": data["digest"],
        "metric_version": METRIC_VERSION,
        "passed": verdict.passed,
        "reasons": list(verdict.reasons),
        "against_champion": verdict.against_champion,
        "setting": dict(setting),
    }
    written += book.write(run, SUMMARY, summary)
    return version, run, written


def scores_of(document: Mapping[str, Any]) -> dict[str, float]:
    """The scores of a backtest's document under flat names, without those that measure this machine."""
    flat: dict[str, float] = {}

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for name, each in value.items():
                if name not in NO_SCORES and not str(name).endswith("_cpu_s"):
                    walk(f"{prefix} {name}".strip(), each)
        elif isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value):
            flat[prefix.removeprefix("horizons ")] = value

    walk("", document)
    return flat


def _case(verdict: CaseVerdict) -> dict[str, Any]:
    return {
        "group": verdict.group,
        "what": verdict.case,
        "origins": verdict.origins,
        "passed": verdict.passed,
        "findings": [_plain(asdict(finding)) for finding in verdict.findings],
    }


def _plain(value: Any) -> Any:
    """JSON values: names as text, sets sorted, no NaN or infinity."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value
