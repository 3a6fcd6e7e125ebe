"""The remedy for an error of a GPU: the class of each XID, and of row remapping.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), column "Resolution Bucket (Immediate Action)", for
Ampere and newer. `INSPECT` are codes without an entry, unused ones, requests for support, an update or a look at the
machine, and workflows that need more than the number (74, 144 to 150, 154, 159). Two workflows have one end: 48
(double-bit error) ends in a reset of the GPU; 45 (channels torn down) follows from the end of a process, an eviction
too, and the code before it counts (recovery/follow_errors.py). Row remapping: NVIDIA, "GPU Memory Error Management",
"Row Remapping": pending ones take effect with the next reset, and work may go on until then; a GPU with a failed
remapping is to be replaced.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from autopilot.core.model.repeated import kept_while_same
from autopilot.core.model.snapshot import I8, I32, Bools, GpuTable, NodeTable


class Remedy(IntEnum):
    """The remedy for an error of a GPU, mildest first."""

    NONE = 0  # none, or only a restart of the application: the error is its fault, or contained in it
    INSPECT = 1  # a person decides: the GPU takes no new work, and running work continues
    RESET_LATER = 2  # as INSPECT, and the GPU must be reset when it is idle
    RESET_GPU = 3  # no work can run until the GPU is reset: its work is stopped and continues elsewhere
    RESTART_NODE = 4  # as RESET_GPU, and the node takes no new work until it is restarted
    REPLACE = 5  # as RESET_GPU, and a reset does not fix it


CONDEMNED = Remedy.RESET_GPU
"""From this remedy on, no work continues on the GPU."""

UNKNOWN_XID = -1
OFF_THE_BUS = 79
"""The XID of a GPU lost to its machine, beyond any measurement."""
REMAP_UNKNOWN, REMAP_NONE, REMAP_PENDING, REMAP_FAILED = -1, 0, 1, 2
"""Row remapping of a GPU's memory, from the DCGM fields 395 (failed) and 396 (pending)."""

_BY_ACTION: dict[Remedy, tuple[int, ...]] = {
    # RESTART_APP and IGNORE
    Remedy.NONE: (
        8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94,
        *range(96, 106), *range(126, 136), 139,
        14, 37, 38, 43, 44, 45, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161,
    ),
    # RESET_GPU
    Remedy.RESET_GPU: (46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158),
    # RESTART_BM (the machine) and RESTART_VM
    Remedy.RESTART_NODE: (79, 151),
}  # fmt: skip

MOST_XID = 255
_TABLE = np.full(MOST_XID + 2, Remedy.INSPECT, np.int8)  # the last entry: codes beyond the table
_TABLE[0] = Remedy.NONE
for _remedy, _codes in _BY_ACTION.items():
    _TABLE[list(_codes)] = _remedy


def remedy_of(xid: int) -> Remedy:
    """The remedy for the error with this number; `NONE` for 0 (no error) and -1 (unknown)."""
    return Remedy(int(remedies(np.array([xid], np.int32))[0]))


def remedies(xid: I32) -> I8:
    """The remedy for each number. Shape as `xid`."""
    codes = np.where(xid < 0, 0, np.minimum(xid, MOST_XID + 1))
    return np.asarray(_TABLE[codes])


@kept_while_same
def gpu_remedies(gpus: GpuTable) -> I8:
    """The most severe remedy for the errors of each GPU. Shape [gpus]."""
    memory = np.zeros(len(gpus.uuid), np.int8)
    memory[gpus.remap == REMAP_PENDING] = Remedy.RESET_LATER
    memory[gpus.remap == REMAP_FAILED] = Remedy.REPLACE
    return np.maximum(remedies(gpus.xid), memory)


def node_restarts(gpus: GpuTable) -> Bools:
    """GPUs with an XID of class "restart the node". The state of their memory changes nothing. Shape [gpus]."""
    return np.asarray(remedies(gpus.xid) == Remedy.RESTART_NODE)


def error_of(gpus: GpuTable, gpu: int) -> str:
    """The gravest error of a GPU in words."""
    code = int(gpus.xid[gpu])
    if gpus.remap[gpu] == REMAP_FAILED:
        return "row remapping failed"
    if gpus.remap[gpu] == REMAP_PENDING and remedy_of(code) < Remedy.RESET_LATER:
        return "row remapping pending"
    return f"XID {code}"


@kept_while_same
def out_of_use(nodes: NodeTable, gpus: GpuTable) -> tuple[Bools, Bools]:
    """Nodes and GPUs closed to new work by errors. Shapes [nodes], [gpus]."""
    bad_node = np.zeros(len(nodes.id), np.bool_)
    bad_node[gpus.node[node_restarts(gpus)]] = True
    return bad_node, gpu_remedies(gpus) > Remedy.NONE
