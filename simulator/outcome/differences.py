"""Causes of differences between simulated and recorded starts, as far as the recorded starts and ends tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autopilot.core.model.units import format_ratio
from simulator.outcome.recorded import Recorded
from simulator.traces.job_trace import Floats

MOST_JOBS = 2000
"""Jobs whose differences are looked at: the largest."""
ROOM_RATIO = 0.1
"""Free GPUs beyond its own width, as a share of the capacity, with which a job had room: they may be in fragments."""
MOSTLY = 0.5
"""Share of a wait in which something has to hold to be its cause."""
AT_LIMIT_RATIO = 0.9
"""Share of its highest use at which a group counts as at a limit."""

WORDS: Mapping[str, str] = {
    "stopped": "times in which nothing was started although GPUs were free, as in maintenance or a reservation",
    "limit": "a limit: work waited beside free GPUs while its {group} held about the most that it ever held",
    "held": "work that later work passed beside free GPUs: holds, dependencies, begin times or reservations",
    "absent": "GPUs that were not used beside waiting work: down, drained, or held by work that the file does not list",
    "more": "GPUs that the cluster file lacks: more were in use than it has",
    "unfit": "work that does not start on the cluster of the cluster file",
    "order": "the order of work: other work went first, by priorities, shares, preemption or node choice",
}
NO_ELIGIBLE = "; the file has no Eligible, so holds, begin times and dependencies look like waiting for GPUs"


@dataclass(frozen=True, slots=True)
class Steps:
    """A number over time: `value[i]` from `at_s[i]` on; the first time is before all others."""

    at_s: Floats
    value: Floats

    def now(self, times_s: Floats) -> Floats:
        """The number at some times."""
        place = np.searchsorted(self.at_s, times_s, side="right") - 1
        found: Floats = self.value[place]
        return found

    def share(self, most: float, from_s: float, to_s: float) -> float:
        """The share of a time with the number at or below `most`."""
        first, last = np.searchsorted(self.at_s, (from_s, to_s), side="right")
        edges = np.concatenate(([from_s], self.at_s[first:last], [to_s]))
        low = self.now(edges[:-1]) <= most
        return float((np.diff(edges) * low).sum() / (to_s - from_s))


@dataclass(slots=True)
class Differences:
    """The causes of differences from the recorded starts."""

    recorded: Recorded
    _steps: dict[tuple[str, str], Steps] = field(default_factory=dict)

    def causes(self, rows: npt.NDArray[np.intp], start_s: Floats) -> list[dict[str, Any]]:
        """The apparent causes of the jobs in `rows`, the largest first, with their share of the difference.

        The difference of a job is the time between its two starts; of a never started one, its recorded wait.
        """
        recorded = self.recorded
        off_s = np.abs(start_s - recorded.start_s)[rows]
        off_s = np.where(np.isnan(off_s), np.maximum((recorded.start_s - recorded.submit_s)[rows], 1.0), off_s)
        found: dict[str, dict[str, Any]] = {}
        groups: dict[str, dict[str, float]] = {}
        for k in np.argsort(-off_s, kind="stable")[:MOST_JOBS].tolist():
            cause, group = self._cause(int(rows[k]), float(start_s[rows[k]]))
            one = found.setdefault(cause, {"cause": cause, "jobs": 0, "difference_s": 0.0, "group": None})
            one["jobs"] += 1
            one["difference_s"] += float(off_s[k])
            if group:
                mine = groups.setdefault(cause, {})
                mine[group] = mine.get(group, 0.0) + float(off_s[k])
        total = sum(each["difference_s"] for each in found.values())
        for each in found.values():
            each["ratio"] = each["difference_s"] / total if total else None
            names = groups.get(each["cause"], {})
            each["group"] = max(names, key=lambda name: names[name]) if names else None
            each["words"] = _words(each, eligible=recorded.eligible)
        return sorted(found.values(), key=lambda each: -each["difference_s"])

    def _cause(self, job: int, start_s: float) -> tuple[str, str]:
        """The cause for one job, and the group at its limit."""
        recorded = self.recorded
        theirs_s = float(recorded.start_s[job])
        if np.isnan(start_s):
            return "unfit", ""
        model, capacity = self._models(job)
        if start_s >= theirs_s:
            most = self._busy("only", model).now(np.array([theirs_s]))[0]
            return ("more" if most > capacity + 1e-6 else "order"), ""
        width = float(recorded.gpus[job])
        busy = self._busy("models", model)
        if busy.share(capacity - width - ROOM_RATIO * capacity, start_s, theirs_s) < MOSTLY:
            used = float(busy.value.max())  # more of them there may not have been
            room, there = (busy.share(most - width, start_s, theirs_s) >= MOSTLY for most in (capacity, used))
            return ("absent" if room and not there else "order"), ""
        inside = (recorded.start_s > start_s) & (recorded.start_s < theirs_s) & recorded.known
        marks = np.sort(recorded.start_s[inside])
        if np.diff(np.concatenate(([start_s], marks, [theirs_s]))).max() > (1 - MOSTLY / 2) * (theirs_s - start_s):
            return "stopped", ""
        later = inside & (recorded.submit_s > recorded.submit_s[job]) & (recorded.gpus >= width)
        if not later.any():
            return "absent", ""
        for kind, names in recorded.groups.items():
            name = str(names[job])
            if not name or (later & (names == name)).any():
                continue
            held = self._busy(kind, name)
            most = float(held.value.max(initial=0.0))
            if 1 - held.share(AT_LIMIT_RATIO * most - 1e-9, start_s, theirs_s) >= MOSTLY:
                return "limit", f"{kind} {name}"
        return "held", ""

    def _models(self, job: int) -> tuple[str, float]:
        """The usable GPU models of a job, "" for all, and their number of GPUs."""
        models = str(self.recorded.models[job])
        counts = self.recorded.gpus_by_model
        named = [name for name in models.split("|") if name in counts]
        return ("|".join(named), float(sum(counts[name] for name in named or counts)))

    def _busy(self, kind: str, name: str) -> Steps:
        """GPUs held by recorded work: work of a group, work that may have held some `models` ("": any), or `only`
        work bound to them.
        """
        if (kind, name) not in self._steps:
            held = self.recorded.held()
            rows = held[:, 0].astype(np.intp)
            if kind in self.recorded.groups:
                mine = self.recorded.groups[kind][rows] == name
            else:
                wanted = set(name.split("|"))
                sets = [set(text.split("|")) if text else set() for text in self.recorded.models[rows].tolist()]
                may = [not name or not each or bool(wanted & each) for each in sets]
                mine = np.array([not name or wanted >= each > set() for each in sets] if kind == "only" else may, bool)
            held = held[mine]
            at_s, place = np.unique(held[:, 1:3].T.ravel(), return_inverse=True)
            change = np.concatenate((held[:, 3], -held[:, 3]))
            value = np.cumsum(np.bincount(place, weights=change, minlength=len(at_s))).astype(np.float64)
            self._steps[kind, name] = Steps(np.append(-np.inf, at_s), np.append(0.0, value))
        return self._steps[kind, name]


def _words(cause: Mapping[str, Any], *, eligible: bool) -> str:
    """A cause in words, with its share of the difference."""
    what = WORDS[cause["cause"]].format(group=cause["group"] or "group")
    more = "" if eligible or cause["cause"] != "held" else NO_ELIGIBLE
    return f"{what} ({format_ratio(cause['ratio'])} of the difference{more})"
