"""Kinds of capacity: whole GPUs, shares of a GPU, and MIG instances. One file and one row of `KINDS` each.

Theory of operation. A request is for one kind, which its `Shape` states. The kind answers where a gang of equal members
fits, and where one of differing members does (`Kind`, base.py). All kinds read the same books: a `Layout` says for each
entry which GPU, which instance of it (-1: none), and how many thousandths are taken. A further kind, such as a slice of
a GPU under another driver, is a file here, its row, and a field of `Shape` that selects it.
"""

from __future__ import annotations

from autopilot.core.placement.kinds import instances, shares, whole
from autopilot.core.placement.kinds.base import Kind
from autopilot.core.placement.shapes import Shape

KINDS: tuple[Kind, ...] = (whole.KIND, instances.KIND, shares.KIND)


def kind_of(shape: Shape) -> Kind:
    """The kind that serves a request."""
    return next(kind for kind in KINDS if kind.serves(shape))
