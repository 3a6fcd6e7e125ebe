"""The neighbours of work on shared GPUs, and those that it allows. MIG instances have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import isnan

import numpy as np

from autopilot.contract import TRUST_OF
from autopilot.contract.tree import word_of
from autopilot.core.model.objects import Share, Sharing, Trust
from autopilot.core.model.snapshot import GPU_MILLI, ClusterSnapshot
from autopilot.core.model.units import counted
from autopilot.core.sharing.facts import SharedRates
from autopilot.core.sharing.terms import barring

SHOWN = 5
SHARING_WORDS = {Sharing.WHOLE: "whole", Sharing.TIME_SLICING: "time-slicing", Sharing.MPS: "mps"}
_TRUST = {code: str(word) for word, code in TRUST_OF.items()}


def trust_word(snapshot: ClusterSnapshot, row: int) -> str:
    """The trust of a workload in the words of the contract."""
    return _TRUST[Trust(int(snapshot.workloads.trust[row]))]


def share_word(snapshot: ClusterSnapshot, row: int) -> str:
    """The share of a workload in the words of the contract."""
    return word_of(Share(int(snapshot.workloads.share[row])))


def neighbours(snapshot: ClusterSnapshot) -> Mapping[int, Counter[int]]:
    """By row of a workload: the rows of those on GPUs with it, and on how many. Work without any is absent."""
    held = snapshot.placements
    plain = np.flatnonzero(held.instance < 0)
    gpus, workloads = held.gpu[plain], held.workload[plain]
    shared = np.bincount(gpus, minlength=1)[gpus] > 1
    on: dict[int, set[int]] = {}
    for gpu, row in zip(gpus[shared].tolist(), workloads[shared].tolist(), strict=True):
        on.setdefault(gpu, set()).add(row)
    found: dict[int, Counter[int]] = {}
    for rows in on.values():
        for row in rows if len(rows) > 1 else ():
            found.setdefault(row, Counter()).update(rows - {row})
    return found


def rate_of(rates: SharedRates, row: int) -> tuple[float, str]:
    """The rate of a workload on shares relative to alone, measured if it can be; NaN and "" where it is unknown."""
    measured, predicted = float(rates.measured[row]), float(rates.predicted[row])
    if not isnan(measured):
        return measured, "measured"
    return predicted, "" if isnan(predicted) else "estimated"


def _rate_line(rates: SharedRates, row: int) -> str:
    rate, basis = rate_of(rates, row)
    if basis == "measured":
        foretold = "" if isnan(rates.predicted[row]) else f", {rates.predicted[row]:.2f} predicted"
        return f"it runs at {rate:.2f} of its rate alone (measured by its steps{foretold})"
    if basis:
        return f"it runs at {rate:.2f} of its rate alone (estimated from what each does alone)"
    return "its rate relative to alone is unknown: it reports no steps, or what all of them do alone is not known"


def sharing_lines(snapshot: ClusterSnapshot, row: int, rates: SharedRates | None = None) -> list[str]:
    """What a workload allows beside it, and who is, or why it never shares; no line where no node can be shared."""
    work, held, nodes = snapshot.workloads, snapshot.placements, snapshot.nodes
    lines = []
    if work.trust[row] != Trust.UNTRUSTED or work.share[row] != Share.NEVER:
        lines.append(f"on shared GPUs: trust {trust_word(snapshot, row)}, share {share_word(snapshot, row)}")
    mine = np.flatnonzero((held.workload == row) & (held.instance < 0) & (held.milli < GPU_MILLI))
    if not len(mine):
        able = bool(((nodes.replicas > 1) | (nodes.sharing_offers != 0)).any())
        bar = next((words for words, mask in barring(snapshot) if mask[row]), "")
        return [*lines, f"it never shares GPUs: {bar}"] if able and bar else lines
    node = int(held.node[mine[0]])
    how = SHARING_WORDS[Sharing(int(nodes.sharing[node]))]
    how = how if how != "whole" else "a mechanism that its node does not state"
    beside = neighbours(snapshot).get(row, Counter())
    names = [
        f"{work.id[other]} ({_tenant(snapshot, other)}, on {counted(count, 'GPU')})"
        for other, count in beside.most_common(SHOWN)
    ]
    more = f" and {len(beside) - SHOWN} more" if len(beside) > SHOWN else ""
    with_whom = f"with {', '.join(names)}{more}" if names else "and is alone on it now"
    milli = int(held.milli[mine].sum())
    lines.append(f"holds {milli / GPU_MILLI:g} GPU in {counted(len(mine), 'share')} by {how} {with_whom}")
    if names and rates is not None:
        lines.append(_rate_line(rates, row))
    if names:
        lines.append("its activity is estimated: the counters of a shared GPU are the device's, not its own")
    return lines


def _tenant(snapshot: ClusterSnapshot, row: int) -> str:
    code, names = int(snapshot.workloads.tenant[row]), snapshot.names.tenants
    return f"tenant {names[code]}" if 0 <= code < len(names) else "no tenant"
