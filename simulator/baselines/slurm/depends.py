"""Dependencies between jobs: `afterok:7,afterany:8`, `after:9+5?singleton`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from simulator.baselines.slurm.model import Job


class Met(Enum):
    """The state of a dependency."""

    YES = "yes"
    NO = "not yet"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Past:
    """The known past of a job: its first start and its end, None before them; `ok` if it completed."""

    start_s: float | None = None
    end_s: float | None = None
    ok: bool = False


def dependency(
    job: Job,
    past: Mapping[str, Past],
    elements: Callable[[str], list[str]],
    same_name_before: Callable[[Job], bool],
    now_s: float,
) -> Met:
    """The state of the job's dependency at `now_s`.

    `elements` gives the keys of all elements of an array (of a plain job its own key). `same_name_before` is
    True while an earlier job of the same name and user has not ended.
    """
    if not job.depends:
        return Met.YES
    either = "?" in job.depends
    parts = [part for part in re.split(r"[,?]", job.depends) if part]
    found: list[Met] = []
    for part in parts:
        kind, _, rest = part.partition(":")
        if kind == "singleton":
            found.append(Met.NO if same_name_before(job) else Met.YES)
            continue
        for word in rest.split(":"):
            name, _, minutes = word.partition("+")
            keys = elements(name)
            if kind == "aftercorr":
                keys = [key for key in keys if key == f"{name}_{job.index}"] or keys
            found += [_one(kind, past.get(key, Past()), 60.0 * float(minutes or 0), now_s) for key in keys]
    if either:
        return Met.YES if Met.YES in found else Met.NEVER if set(found) == {Met.NEVER} else Met.NO
    return Met.NEVER if Met.NEVER in found else Met.NO if Met.NO in found else Met.YES


def _one(kind: str, past: Past, delay_s: float, now_s: float) -> Met:
    if kind == "after":
        began_s = past.start_s if past.start_s is not None else past.end_s
        return Met.YES if began_s is not None and now_s >= began_s + delay_s else Met.NO
    if past.end_s is None:
        return Met.NO
    if kind in {"afterok", "aftercorr"} and not past.ok:
        return Met.NEVER
    if kind == "afternotok" and past.ok:
        return Met.NEVER
    return Met.YES if now_s >= past.end_s + delay_s else Met.NO
