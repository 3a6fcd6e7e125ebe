"""Whether a write leaves annotations that `autopilot uninstall` does not remove (`autopilot.contract.marks`).

`tests/unit/actuators/conftest.py` fails a test in which a lever writes another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from actuators.kubernetes.api import Answer, Ref
from actuators.kubernetes.writing import Decide, Stop, Writer
from autopilot.contract.annotations import EPOCH, PLACEMENT
from autopilot.contract.marks import MARKS
from autopilot.contract.tree import PREFIX

Obj = dict[str, Any]
STAYS = {"ConfigMap": frozenset({EPOCH})}
"""The geometries of nodes, which their MIG manager reads on."""


def undeclared(kind: str, patch: Obj) -> Iterator[str]:
    """Names of ours in a patch that `MARKS` does not have."""
    meta = patch.get("metadata") or {}
    known = MARKS.get(kind, frozenset()) | STAYS.get(kind, frozenset())
    for key, value in (meta.get("annotations") or {}).items():
        if value is not None and key.startswith(PREFIX) and key not in known:
            yield f"annotation {key} on a {kind}"
    for key, value in (meta.get("labels") or {}).items():
        if value is not None and "gpu-autopilot" in key and not (kind == "Node" and key.startswith(PLACEMENT)):
            yield f"label {key} on a {kind}"


@contextmanager
def recorded() -> Iterator[list[tuple[str, Obj]]]:
    """Kind and patch of every write meanwhile."""
    sent: list[tuple[str, Obj]] = []
    change = Writer.change

    def noting(self: Writer, ref: Ref, decide: Decide, epoch: int, **more: Any) -> Answer:
        def noted(found: Obj) -> Obj | Stop:
            wanted = decide(found)
            if not isinstance(wanted, Stop):
                sent.append((ref.kind, wanted))
            return wanted

        return change(self, ref, noted, epoch, **more)

    Writer.change = noting  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        Writer.change = change  # type: ignore[method-assign]


def unnamed(sent: Iterable[tuple[str, Obj]]) -> list[str]:
    """What was written that docs/install.md does not remove."""
    return sorted({name for kind, patch in sent for name in undeclared(kind, patch)})
