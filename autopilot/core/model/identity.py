"""Identity of objects (uid) and of their requests (digest): neither names nor row numbers are stable.

A digest is compared across ticks, processes and versions. It therefore covers names and amounts, and never a code, a
bit or an order of the tables: a source numbers them in the order of its encounters, anew at each start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2s

import numpy as np

from autopilot.core.model.snapshot import ClusterSnapshot, Names, ServiceTable, WorkloadTable

OF_NODES = "nodes: "
"""Prefix of a label required of nodes by a source because of the present nodes (their taints, and their ways to offer
GPUs). It comes and goes with other nodes, so the request of work excludes it. No `key=value` begins like this.
"""

_AMOUNTS = (
    "gpus",
    "gpus_per_member",
    "min_gpus",
    "gpu_milli",
    "gpu_memory_mib",
    "cpu_milli",
    "memory_mib",
    "topology",
)


def rows_by_uid(table: WorkloadTable | ServiceTable) -> dict[str, int]:
    """Rows by uid; rows without a uid are left out."""
    rows = dict(zip(table.uid.tolist(), range(len(table.uid)), strict=True))
    rows.pop("", None)
    return rows


def present_uids(snapshot: ClusterSnapshot) -> frozenset[str]:
    """Possible subjects of a proposal: uids of workloads and services, UUIDs of GPUs, names of nodes."""
    tables = (snapshot.workloads.uid, snapshot.services.uid, snapshot.gpus.uuid, snapshot.nodes.id)
    return frozenset(str(name) for column in tables for name in column.tolist())


def shape_digest(snapshot: ClusterSnapshot, row: int) -> str:
    """Twelve hexadecimal digits of the request and queue of a workload; they change with either.

    Labels because of the present nodes (`OF_NODES`) are no part of the request.
    """
    work, names = snapshot.workloads, snapshot.names
    asked = {name: int(getattr(work, name)[row]) for name in _AMOUNTS}
    digest = blake2s(digest_size=6)
    for part in (
        sorted(asked.items()),
        _profile(names.profiles, int(work.mig_profile[row])),
        _named(names.gpu_models, int(work.gpu_models[row])),
        _own(names, int(work.selector[row])),
        _members(snapshot, row),
        str(snapshot.queues.id[int(work.queue[row])]),
    ):
        digest.update(f"{part!r}|".encode())
    return digest.hexdigest()


def _members(snapshot: ClusterSnapshot, row: int) -> list[list[tuple[int, str, list[str]]]]:
    """The requests of differing members, by pod, in no order."""
    members, names = snapshot.members, snapshot.names
    pods: dict[str, list[tuple[int, str, list[str]]]] = defaultdict(list)
    for each in np.flatnonzero(members.workload == row).tolist():
        profile = _profile(names.profiles, int(members.mig_profile[each]))
        asked = (int(members.gpus[each]), profile, _own(names, int(members.selector[each])))
        pods[str(members.pod[each] or members.id[each])].append(asked)
    return sorted(sorted(parts) for parts in pods.values())


def _profile(profiles: Sequence[str], code: int) -> str:
    """The name of a MIG profile; "" for whole GPUs, "?" for a profile on no GPU of the cluster."""
    return profiles[code] if code >= 0 else "" if code == -1 else "?"


def _own(names: Names, selector: int) -> list[str]:
    """The labels requested by the work itself, sorted."""
    asked = (names.labels[each] for each in names.selectors[selector])
    return sorted(name for name in asked if not name.startswith(OF_NODES))


def _named(names: Sequence[str], bits: int) -> list[str]:
    """The names of a bit set, sorted; a bit without a name stands for itself."""
    set_bits = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    return sorted(names[bit] if bit < len(names) else f"bit {bit}" for bit in set_bits)
