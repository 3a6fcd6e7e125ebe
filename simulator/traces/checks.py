"""Usable rows of a job file, and the reasons against the others.

Every row gets at most one reason: the first applicable one, in the order of `find_unusable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autopilot.contract import (
    MOST_GPUS,
    PREFIX,
    Contract,
    Domain,
    Facts,
    contract_fields,
    contradictions,
    parse_contract,
)
from autopilot.core.model.snapshot import GPU_MILLI
from simulator.traces.columns import JOB_COLUMNS
from simulator.traces.table_files import row_label

if TYPE_CHECKING:
    import pandas as pd

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]

COLUMN_OF = {found.key: found.stated.column for found in contract_fields()}
"""The column that carries an annotation of the workload contract."""


@dataclass(slots=True)
class RowReasons:
    """Collects unusable rows. `usable` has one entry per row of the file."""

    usable: BoolArray
    count_by_reason: dict[str, int] = field(default_factory=dict)
    first_row_by_reason: dict[str, int] = field(default_factory=dict)
    first_value_by_reason: dict[str, float] = field(default_factory=dict)

    def refuse(self, wrong: BoolArray, reason: str, values: FloatArray | None = None) -> None:
        """Drop the rows in `wrong`; those not dropped before are counted under `reason`, with the first of `values`."""
        hit = wrong & self.usable
        found = int(np.count_nonzero(hit))
        if found:
            self.count_by_reason[reason] = self.count_by_reason.get(reason, 0) + found
            self.first_row_by_reason.setdefault(reason, int(hit.argmax()))
            if values is not None:
                self.first_value_by_reason.setdefault(reason, float(values[hit.argmax()]))
            self.usable &= ~hit

    def first_rows(self, frame: pd.DataFrame, path: Path) -> dict[str, str]:
        """The first row with each reason, as numbered in the file, and its value if the reason is a limit."""
        values = {reason: f", value {value:g}" for reason, value in self.first_value_by_reason.items()}
        return {
            reason: row_label(path, int(frame.index[row])) + values.get(reason, "")
            for reason, row in self.first_row_by_reason.items()
        }

    def in_words(self, frame: pd.DataFrame, path: Path) -> str:
        """All reasons in one sentence."""
        first = self.first_rows(frame, path)
        return "; ".join(
            f"{count:,} x {reason} (first in {first[reason]})" for reason, count in self.count_by_reason.items()
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the cluster, to recognize jobs unable to ever run; an empty `by_type` disables the check of
    types.

    `limit_by_tenant` is the most GPUs of a tenant's queue, `type_limit_by_tenant` the same for single types;
    an unlisted tenant or type has no limit.
    """

    gpus: int
    by_type: Mapping[str, int] = field(default_factory=dict)
    limit_by_tenant: Mapping[str, int] = field(default_factory=dict)
    type_limit_by_tenant: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def most_gpus(self, tenant: str, types: Iterable[str]) -> int:
        """The most GPUs of these types together for a tenant at any time, each type within its own limit."""
        limits = self.type_limit_by_tenant.get(tenant, {})
        return sum(min(self.by_type.get(name, 0), limits.get(name, self.by_type.get(name, 0))) for name in set(types))


def find_unusable(
    text: Mapping[str, npt.NDArray[np.object_]],
    numbers: Mapping[str, FloatArray],
    capacity: Capacity | None,
    selected: BoolArray,
) -> RowReasons:
    """Judge every row of `selected`; the others are excluded without a reason.

    `text` and `numbers` hold the columns of the file by name (missing ones absent), plus `start_s` and `end_s` if
    the file has them.
    """
    reasons = RowReasons(usable=selected.copy())
    reasons.refuse(text["job_id"] == "", "job_id is missing")
    for column in JOB_COLUMNS:
        if column.name in numbers:
            _check_limits(reasons, numbers[column.name], column.name, column.low, column.high, column.required)
        elif column.allowed and column.name in text:
            known = np.isin(text[column.name].astype(str), ("", *column.allowed))
            reasons.refuse(~known, f"unknown {column.name}")
    _check_order_of_times(reasons, numbers)
    reasons.refuse(numbers["duration_s"] < 1.0, "duration_s is below 1 s")
    _check_shape(reasons, text, numbers)
    if capacity is not None:
        _check_capacity(reasons, text, numbers, capacity)
    _check_contract(reasons, text, numbers, tuple(capacity.by_type) if capacity is not None else ())
    _check_shares(reasons, text, numbers)
    reasons.refuse(_repeated(text["job_id"], reasons.usable), "job_id is repeated")
    return reasons


def _check_limits(reasons: RowReasons, values: FloatArray, name: str, low: float, high: float, required: bool) -> None:
    if required:
        reasons.refuse(np.isnan(values), f"{name} is not known")
    reasons.refuse(np.isinf(values), f"{name} is infinite")
    reasons.refuse(values < 0, f"{name} is negative", values)
    if name == "gpus":
        reasons.refuse(values == 0, "no GPU requested")
    reasons.refuse(values < low, f"{name} is below {low:g}", values)
    reasons.refuse(values > high, f"{name} is above {high:g}", values)


def _check_order_of_times(reasons: RowReasons, numbers: Mapping[str, FloatArray]) -> None:
    submit_s, start_s, end_s = numbers["submit_s"], numbers.get("start_s"), numbers.get("end_s")
    if start_s is not None:
        reasons.refuse(start_s < submit_s, "start before submit")
    if end_s is not None:
        reasons.refuse(end_s < (submit_s if start_s is None else np.fmax(start_s, submit_s)), "end before start")


def _check_shape(
    reasons: RowReasons, text: Mapping[str, npt.NDArray[np.object_]], numbers: Mapping[str, FloatArray]
) -> None:
    gpus = np.clip(numbers["gpus"], -1, MOST_GPUS)  # more was refused, and a product of it may overflow
    whole = gpus == np.floor(gpus)
    reasons.refuse(~whole & (gpus > 1), "gpus is neither whole nor a share of one GPU")
    reasons.refuse((gpus < 1) & (gpus * 1000 < 0.5), "gpus is below a thousandth of one GPU")
    for name in ("nodes", "priority", "min_gpus", "gpu_milli", "memory_mib"):
        if name in numbers:
            values = numbers[name]
            reasons.refuse(~np.isnan(values) & (values != np.floor(values)), f"{name} is not a whole number")
    if "min_gpus" in numbers:
        reasons.refuse(numbers["min_gpus"] > np.ceil(gpus), "min_gpus is above gpus")
    if "gpu_milli" in numbers:
        milli = numbers["gpu_milli"]
        reasons.refuse((milli < GPU_MILLI) & (gpus > 1), "gpu_milli is a share, but gpus is above 1")
        disagree = ~whole & ~np.isnan(milli) & (np.abs(np.rint(gpus * 1000) - milli) > 1)
        reasons.refuse(disagree, "gpus and gpu_milli disagree")
    if "mig_profile" in text:
        profiles = text["mig_profile"]
        share = ~whole | (numbers.get("gpu_milli", np.full(len(gpus), np.nan)) < GPU_MILLI)
        reasons.refuse(_illegal_profiles(profiles), "illegal mig_profile")
        reasons.refuse((profiles != "") & share, "mig_profile with a share of a GPU")


def _illegal_profiles(profiles: npt.NDArray[np.object_]) -> BoolArray:
    """Rows with a profile of no GPU model."""
    from simulator.traces.gpu_models import is_mig_profile

    given = {str(name) for name in set(profiles.tolist()) if name}
    wrong = {name for name in given if not is_mig_profile(name)}
    return np.isin(profiles.astype(str), sorted(wrong)) if wrong else np.zeros(len(profiles), dtype=bool)


def _check_capacity(
    reasons: RowReasons,
    text: Mapping[str, npt.NDArray[np.object_]],
    numbers: Mapping[str, FloatArray],
    capacity: Capacity,
) -> None:
    slices = text["mig_profile"] != "" if "mig_profile" in text else np.zeros(len(numbers["gpus"]), dtype=bool)
    # A GPU holds at most seven slices, so a row of slices needs at least a seventh of its count.
    gpus = np.where(slices, np.ceil(numbers["gpus"] / 7), np.ceil(numbers["gpus"]))
    reasons.refuse(gpus > capacity.gpus, "wider than the cluster")
    least = np.where(slices, gpus, np.fmin(numbers["gpus"], numbers.get("min_gpus", numbers["gpus"])))
    tenants = text["tenant"].tolist()
    if capacity.limit_by_tenant:
        limits = [capacity.limit_by_tenant.get(name, capacity.gpus) for name in tenants]
        reasons.refuse(least > np.array(limits, float), "wider than the limit of its queue")
    types = text["gpu_type"].astype(str) if "gpu_type" in text else np.full(len(gpus), "")
    if capacity.type_limit_by_tenant:
        most = [
            capacity.most_gpus(tenant, _named(request) if request else capacity.by_type)
            for tenant, request in zip(tenants, types.tolist(), strict=True)
        ]
        known = np.array(
            [not request or any(name in capacity.by_type for name in _named(request)) for request in types]
        )
        reasons.refuse(known & (least > np.array(most, float)), "wider than the limit of its queue for its GPU type")
    if not capacity.by_type or "gpu_type" not in text:
        return
    room = np.full(len(gpus), float(capacity.gpus))
    for request in sorted(set(types.tolist()) - {""}):
        held = sum(capacity.by_type.get(name, 0) for name in _named(request))
        room[types == request] = held
    reasons.refuse(room == 0, "no such GPU type in the cluster")
    reasons.refuse(gpus > room, "wider than the GPUs of its type")


def _named(request: str) -> set[str]:
    """The GPU types of a request such as `H100-80GB|A100-80GB`."""
    return {name.strip() for name in request.split("|")}


def _check_contract(
    reasons: RowReasons,
    text: Mapping[str, npt.NDArray[np.object_]],
    numbers: Mapping[str, FloatArray],
    gpu_models: tuple[str, ...],
) -> None:
    """Contradictions between MIG profile, GPU type, domain and GPU memory, by the rules of the contract.

    Equal rows are judged once. `gpu_models` are those of the cluster, empty if unknown.
    """
    empty, unknown = np.full(len(reasons.usable), "", object), np.full(len(reasons.usable), np.nan)
    profiles, types, domains = (text.get(name, empty) for name in ("mig_profile", "gpu_type", "topology"))
    memory_gib = np.nan_to_num(numbers.get("gpu_memory_gib", unknown))
    asked = np.flatnonzero(reasons.usable & ((profiles != "") | (memory_gib > 0)))
    columns = (each[asked].tolist() for each in (profiles, types, domains, memory_gib))
    wrong: dict[str, list[int]] = {}
    for (profile, gpu_type, domain, gib), alike in _equal_rows(asked, columns).items():
        said: dict[str, Any] = {"mig-profile": (profile,)} if profile else {}
        said |= {"gpu-type": tuple(word.strip() for word in gpu_type.split("|"))} if gpu_type else {}
        said |= {"topology": Domain(domain)} if domain else {}
        said |= {"gpu-memory-gib": gib} if gib else {}
        problems = contradictions(said, Facts(gpu_models=gpu_models))
        if problems:
            wrong.setdefault(f"{COLUMN_OF[problems[0].key]} {problems[0].reason}", []).extend(alike)
    _refuse_all(reasons, wrong)


def _check_shares(
    reasons: RowReasons, text: Mapping[str, npt.NDArray[np.object_]], numbers: Mapping[str, FloatArray]
) -> None:
    """`share` against trust, class, width, domain and parts of a GPU, by the rules of the contract."""
    empty, unknown = np.full(len(reasons.usable), "", object), np.full(len(reasons.usable), np.nan)
    words = [text.get(name, empty) for name in ("share", "trust", "slo_class", "topology", "mig_profile")]
    asked = np.flatnonzero(reasons.usable & ~np.isin(words[0].astype(str), ("", "never")))
    part = (numbers["gpus"] < 1) | (numbers.get("gpu_milli", unknown) < GPU_MILLI)
    columns = (each[asked].tolist() for each in (*words, np.ceil(numbers["gpus"]), part))
    wrong: dict[str, list[int]] = {}
    for key, alike in _equal_rows(asked, columns).items():
        share, trust, slo_class, topology, profile, gpus, is_part = key
        said = {"share": share, "trust": trust, "slo-class": slo_class, "topology": topology, "mig-profile": profile}
        if not profile:
            said |= {"gpu-milli": "1"} if is_part else {"gpus-per-member": f"{gpus:.0f}"}
        found = parse_contract({f"{PREFIX}{name}": word for name, word in said.items() if word})
        problems = () if isinstance(found, Contract) else found
        for problem in [each for each in problems if each.key == "share"]:
            wrong.setdefault(f"share {problem.reason}", []).extend(alike)
    _refuse_all(reasons, wrong)


def _equal_rows(rows: npt.NDArray[np.intp], columns: Iterable[list[Any]]) -> dict[tuple[Any, ...], list[int]]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for row, key in zip(rows.tolist(), zip(*columns, strict=True), strict=True):
        found.setdefault(key, []).append(row)
    return found


def _refuse_all(reasons: RowReasons, wrong: Mapping[str, list[int]]) -> None:
    for reason, alike in wrong.items():
        hit = np.zeros(len(reasons.usable), dtype=bool)
        hit[alike] = True
        reasons.refuse(hit, reason)


def _repeated(job_id: npt.NDArray[np.object_], usable: BoolArray) -> BoolArray:
    """Every usable row with the job_id of an earlier usable row."""
    import pandas as pd

    kept = np.flatnonzero(usable)
    repeated = np.zeros(len(job_id), dtype=bool)
    repeated[kept] = pd.Series(job_id[kept]).duplicated(keep="first").to_numpy()
    return repeated


def parse_flags(column: pd.Series[str], true_words: tuple[str, ...], false_words: tuple[str, ...]) -> FloatArray:
    """1 for a true word, 0 for a false one, NaN if empty, infinite for any other word."""
    words = column.astype("string").str.strip().str.lower()
    flags = np.full(len(words), np.inf)
    flags[words.isna().to_numpy()] = np.nan
    flags[words.isin(true_words).fillna(False).to_numpy(dtype=bool)] = 1.0
    flags[words.isin(false_words).fillna(False).to_numpy(dtype=bool)] = 0.0
    return flags
