"""The width of elastic Jobs: where a lever may change it, and which of two Workloads counts."""

from __future__ import annotations

from typing import Any

import pytest

from autopilot.contract.annotations import ELASTIC_JOB
from autopilot.core.model.snapshot import State
from collectors.kubernetes.collector import Options
from collectors.kubernetes.gangs import JOBSET_NAME, JOBSET_UID, SET_INDEX
from collectors.kubernetes.serving import SET_NAME
from tests.kits.kube_objects import done, job, kueue, meta, node, owner, pod, workload
from tests.unit.collectors.kubernetes.view import Seen, reasons, row

DECLARED = {"gpu-autopilot.io/members": "3", "gpu-autopilot.io/min-members": "1"}
ACTS = Options(acts=True, resizes=True)


def _job(width: int, notes: dict[str, str], **spec: Any) -> dict[str, Any]:
    found = job("e", 2, width=width, annotations=notes)
    return found | {"spec": found["spec"] | {"completions": None, **spec}}


@pytest.mark.parametrize(
    ("options", "notes", "spec", "widths"),
    [
        (ACTS, DECLARED, {}, (6, 2)),
        (ACTS, DECLARED, {"completions": 3, "completionMode": "Indexed"}, (6, 6)),
        (ACTS, {}, {}, (6, 6)),
        (Options(acts=True), DECLARED, {}, (6, 6)),
        (Options(), DECLARED, {}, (6, 2)),
    ],
)
def test_a_gang_is_elastic_where_a_lever_may_change_its_width(
    options: Options, notes: dict[str, str], spec: dict[str, Any], widths: tuple[int, int]
) -> None:
    """GPUs and least GPUs; all others that the controller acts on have all of their members or none."""
    found = row(Seen(node("n1"), _job(3, notes, **spec), options=options).tables()[1], "team/e")
    assert (found["gpus"], found["min_gpus"]) == widths


CHILD = owner("Job", "child", "c")
MANAGES = "manages its pods, and only Jobs without an owner are resized"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod("r", 2, owner=owner("RayCluster", "r", "u"), annotations=DECLARED), f"RayCluster r {MANAGES}"),
        (
            pod("a", 2, labels={JOBSET_UID: "u", JOBSET_NAME: "js"}, owner=CHILD, annotations=DECLARED),
            f"JobSet js {MANAGES}",
        ),
        (
            pod("a", 2, labels={SET_NAME: "l", SET_INDEX: "0"}, owner=CHILD, annotations=DECLARED),
            f"LeaderWorkerSet l {MANAGES}",
        ),
        (_job(3, DECLARED, completions=3), "its Job counts completions, so a pod that leaves would have to run again"),
    ],
)  # fmt: skip
def test_a_width_that_no_lever_changes_is_named_and_stays(found: dict[str, Any], why: str) -> None:
    """What its owner declared has no effect, and the view says so; the gang is not left alone for that."""
    seen = Seen(node("n1"), found, options=ACTS)
    (said,) = reasons(seen.batch(), "width")
    assert said.partition(": ")[2] == f"it declares min-members, but its width does not change: {why}"
    name = said.partition(": ")[0]
    made = row(seen.tables()[1], name)
    assert made["min_gpus"] == made["gpus"]
    assert not made["excluded"]
    assert reasons(Seen(node("n1"), found, options=Options()).batch(), "width") == []


def test_a_job_that_was_narrowed_keeps_its_declared_width() -> None:
    """Its Job asks for one pod now, and may have three."""
    found = row(Seen(node("n1"), _job(1, DECLARED), options=ACTS).tables()[1], "team/e")
    assert (found["gpus"], found["min_gpus"], found["excluded"]) == (6, 2, False)


def test_the_workload_that_was_replaced_does_not_end_the_gang() -> None:
    """Kueue finishes the Workload of the smaller width once the wider one is admitted."""
    notes = {**DECLARED, ELASTIC_JOB: "true"}
    made = _job(2, notes)
    by = owner("Job", "e", meta("e", "team")["uid"])
    first = workload("job-e-1", 2, owner=by, admitted_to="q", conditions=[done("Finished", "WorkloadSliceReplaced")])
    second = workload("job-e-2", 2, count=2, owner=by, admitted_to="q")
    held = pod("e-0", 2, node="n1", owner=by)
    for objects in ((first, second), (second, first)):
        seen = Seen(*kueue(node("n1"), made, *objects, held), options=ACTS)
        found = row(seen.tables()[1], "team/e")
        assert found["state"] in {State.STARTING, State.RUNNING}
        assert found["min_gpus"] == 2
