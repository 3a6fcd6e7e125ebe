"""Attribution of samples to pods: the containers on each GPU or instance, and how a shared one is divided.

The pod label follows kubelet's allocation, not activity, and may outlive the pod: the caller joins these rows with the
pods that the API knows. Profiling counters are never per process, so a GPU that several containers share is divided by
their GPU_UTIL, else by the memory they hold, else evenly, and is marked estimated.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from collectors.exposition import Owned, Owner


@dataclass(frozen=True, slots=True)
class Attribution:
    """The share of an entity's activity that is attributed to one container of a pod. Shares of an entity sum to 1.

    `container` is "" where the exporter does not name it.
    """

    entity_id: str
    namespace: str
    pod: str
    share_ratio: float
    estimated: bool
    container: str = ""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A GPU or MIG instance as an exporter labels it. `host` names its node, "" where no label does.

    `model` is its name by the driver, "" where no label has it. `now`: the latest answer has it. An earlier one had it
    otherwise.
    """

    uuid: str
    gi_id: str = ""
    profile: str = ""
    host: str = ""
    now: bool = True
    model: str = ""


@dataclass(frozen=True, slots=True)
class Sightings:
    """What one source sees at one time: hardware, and the pods on it. A new object for each new answer."""

    seen: tuple[Sighting, ...] = ()
    attributions: tuple[Attribution, ...] = ()


def attribute(owned: Owned) -> tuple[Attribution, ...]:
    """One row per entity and container, in order of first appearance.

    An entity without a row here carries no pod label. If it is busy, something uses it without an allocation, and it
    must not be treated as free.
    """
    use: defaultdict[str, dict[Owner, list[float]]] = defaultdict(dict)
    for entity, owner, util, memory in zip(
        owned.entity_ids, owned.owners, owned.util_ratio, owned.fb_used_mib, strict=True
    ):
        seen = use[entity].setdefault(owner, [np.nan, np.nan])
        seen[0], seen[1] = float(np.fmax(seen[0], util)), float(np.fmax(seen[1], memory))
    rows: list[Attribution] = []
    for entity, owners in use.items():
        named = {(namespace, pod) for namespace, pod, container in owners if container}
        for namespace, pod in named:  # another scrape job may leave the container out
            owners.pop((namespace, pod, ""), None)
        shares = _shares(np.array(list(owners.values())))
        several = len(owners) > 1
        rows.extend(
            Attribution(entity, namespace, pod, float(share), several, container)
            for (namespace, pod, container), share in zip(owners, shares, strict=True)
        )
    return tuple(rows)


def _shares(use: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[float]:
    """Shares of owners from their GPU_UTIL and memory, [owners, 2]; NaN for unknown."""
    for column in use.T:
        if not np.isnan(column).any() and column.sum() > 0:
            return [float(share) for share in column / column.sum()]
    return [1.0 / len(use)] * len(use)
