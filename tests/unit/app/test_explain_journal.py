from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autopilot.app.decisions.answers import explain_from
from autopilot.app.decisions.past import SHOWN_EVENTS
from autopilot.core.intake.signals import UNMEASURED
from autopilot.core.model.errors import InputError
from autopilot.core.model.memory import ControllerMemory, Step
from autopilot.core.model.modes import Mode, Modes
from autopilot.core.model.policy import Policy
from autopilot.core.model.policy.bounds import JournalRules
from autopilot.core.model.records import About, Evidence, Gap, Note, Observation, Outcome, OutcomeKind, View
from autopilot.core.model.snapshot import State
from autopilot.records.journal import SqliteJournal
from tests.kits.core_world import AUTO, Item, decide, done, holds, waits, with_policy, world
from tests.kits.story_kit import EAGER, tree

Turn = tuple[Observation, tuple[Outcome, ...] | None]
"""What is seen, and what becomes of the instructions (None: all are done)."""


def record(path: Path, turns: Sequence[Turn], policy: Policy = EAGER, *, noted: Sequence[Note] = ()) -> list[Step]:
    """A journal of some turns, each decided with the memory of the previous one; `noted`: with a note of its own each,
    that no decision made.
    """
    memory, steps = ControllerMemory(), []
    ended: tuple[Outcome, ...] = ()
    rules = JournalRules(keyframe_s=1e4, keyframe_ticks=64)
    with SqliteJournal(path, durable=False, rules=rules, run={}, version="0.1.0") as journal:
        for place, (seen_now, outcomes) in enumerate(turns):
            observation = replace(seen_now, outcomes=ended)
            step = decide(observation, policy, memory)
            decision = replace(step.decision, notes=(noted[place],)) if noted else step.decision
            journal.intend(observation, policy, memory, decision, step.instructions)
            ended = done(step.instructions, observation.now_s) if outcomes is None else outcomes
            journal.conclude(observation.tick, ended)
            memory = step.memory
            steps.append(step)
    return steps


def seen(tick: int, now_s: float, *work: Item, shape: str = "1x8", **more: object) -> Observation:
    """One observation."""
    return world(shape, work, now_s, tick=tick, **more)  # type: ignore[arg-type]


def told(path: Path, workload: str, at_s: float | None = None) -> str:
    """The story of a workload."""
    return "\n".join(explain_from(path, None, workload, at_s).lines)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal goes."""
    return tmp_path / "run.journal"


def displaced(path: Path) -> list[Step]:
    """`w` displaces `a` of lower priority, starts, and runs."""
    queue: dict[str, dict[str, Any]] = {"low": {"priority": 5}, "high": {"priority": 9}}
    return record(
        path,
        [
            (seen(0, 600.0, holds("a", 8, **queue["low"]), waits("w", 8, **queue["high"])), None),
            (
                seen(
                    1,
                    640.0,
                    waits("a", 8, incarnation=1, served_s=600.0, **queue["low"]),
                    waits("w", 8, **queue["high"]),
                ),
                None,
            ),
            (
                seen(
                    2,
                    700.0,
                    waits("a", 8, incarnation=1, **queue["low"]),
                    holds("w", 8, start_s=650.0, **queue["high"]),
                ),
                None,
            ),
        ],
    )


def test_an_eviction_is_told_to_its_victim_with_id_loss_and_for_whom(path: Path) -> None:
    """And why it waits now; the winner's story has its wish, then its start, under one proposal."""
    steps = displaced(path)
    pipelined = steps[0].decision.plan.proposals[0].id
    victim = told(path, "a")
    assert f"  10 min: evicted from 8 GPUs, expected loss 1.33 GPU-h, for w: {pipelined} (preempt, accepted)" in victim
    assert (
        f"  11 min: lost an unknown amount of work, as its source does not say (expected 1.33 GPU-h): {pipelined}"
        in victim
    )
    assert "held by capacity" in victim
    winner = told(path, "w")
    happened = winner[winner.index("history:") :]
    assert f": {pipelined} (preempt, accepted)" in happened
    assert f"  11 min: start on 8 GPUs of 1 node (node-0 x 8): {pipelined} (preempt, accepted)" in happened
    assert "holds node-0 x 8 (8 of 8) for 50 s" in winner


def test_a_proposal_is_explained_with_what_became_of_each_effect(path: Path) -> None:
    """The eviction of the victim is an effect of the winner's proposal."""
    steps = displaced(path)
    case = explain_from(path, steps[0].decision.plan.proposals[0].id, None, None).lines
    assert "  victim a: evicted from 8 GPUs, expected loss 1.33 GPU-h (restart 0)" in case
    assert "  outcome done (evict a)" in case
    assert case[-1] == "  a lost an unknown amount of work, as its source does not say (expected 1.33 GPU-h)"


def test_a_move_is_told_as_one_story(path: Path) -> None:
    """The history of a moved workload: where it goes and for which gang, then that it starts there again."""
    a, b, w = (
        holds("a", 4, on=range(4)),
        holds("b", 4, on=range(8, 12), start_s=300.0),
        {"gpus_per_member": 4, "topology": 1},
    )
    record(
        path,
        [
            (seen(0, 600.0, a, b, waits("w", 8, **w), shape="2x8"), None),
            (seen(1, 640.0, a, waits("b", 4, incarnation=1), waits("w", 8, **w), shape="2x8"), None),
            (
                seen(
                    2,
                    700.0,
                    a,
                    holds("b", 4, on=range(4, 8), incarnation=1),
                    holds("w", 8, on=range(8, 16), **w),
                    shape="2x8",
                ),
                None,
            ),
        ],
    )
    said = told(path, "b")
    assert "  10 min: moves to node-0 x 4, expected loss 0.333 GPU-h, for w: pipeline-w-" in said
    assert "  11 min: start again on 4 GPUs of 1 node (node-0 x 4), moved for w: pipeline-w-" in said
    assert "holds node-0 x 4 (4 of 4)" in said


def test_a_shrink_is_told_with_what_is_kept_and_owed(path: Path) -> None:
    """By contract, as the other queue is within its guarantee."""
    queues = tree(("a", 0, -1, 4), ("b", 0, -1, 4))
    big: dict[str, Any] = {"queue": 2, "gpus_per_member": 2, "min_gpus": 2}
    record(
        path,
        [
            (
                seen(0, 600.0, holds("big", 8, **big), waits("w", 4, gpus_per_member=2, queue=1), queues=queues),
                None,
            )
        ],
    )
    said = told(path, "big")
    assert "makes room now for w: shrinks by 4 to 4 GPUs" in said
    assert (
        "  10 min: shrinks by 4 to 4 GPUs (node-0 x 4), expected loss 0.667 GPU-h, by contract, for w: pipeline-w-"
        in said
    )
    assert "queue b: uses 4 GPUs (8 before this tick), guarantee 4" in said


def test_what_failed_is_told(path: Path) -> None:
    """An effect that was refused for good, with the actuator's word."""
    observation = seen(0, 60.0, waits("w", 8))
    effect = decide(observation, EAGER).instructions[0]
    failed = (Outcome(effect.id, OutcomeKind.FAILED, 61.0, "quota of the namespace", retryable=False),)
    record(path, [(observation, failed)])
    assert "  61 s: that failed (admit): quota of the namespace" in told(path, "w")


def test_the_same_refusal_again_is_one_line(path: Path) -> None:
    """How often, and until when; the middle of very many events is left out."""
    policy = with_policy(EAGER, hysteresis={"dwell_s": 3600.0})
    low, high = holds("a", 8, priority=5), waits("w", 8, priority=9)
    record(path, [(seen(n, 600.0 + 30 * n, low, high), None) for n in range(5)], policy)
    said = told(path, "w")
    happened = said[said.index("history:") :].splitlines()
    assert len(happened) == 3
    assert happened[2].endswith("(preempt, refused) (5 times until 12 min)")
    assert "guard hysteresis: no longer in the way of pipeline-w-" in said
    assert "in 58 min" in said  # two of the sixty minutes have passed


def test_many_events_are_cut_in_the_middle(path: Path) -> None:
    """The first and the last are there, and how many are not."""
    turns: list[Turn] = []
    for tick in range(SHOWN_EVENTS + 10):
        effect = decide(seen(tick, 60.0 * tick, waits("w", 8, incarnation=tick)), EAGER).instructions[0]
        turns.append((seen(tick, 60.0 * tick, waits("w", 8, incarnation=tick)), done((effect,), 60.0 * tick)))
    record(path, turns)
    said = told(path, "w").splitlines()
    assert "  ... 11 more ..." in said
    assert len(said[said.index("history:") + 1 :]) == SHOWN_EVENTS + 1
    assert said[-1].startswith("  1 h 9 min: start on 8 GPUs of 1 node")


def test_a_moment_before_divides_what_happened_from_what_came_later(path: Path) -> None:
    """`--at` shows the state of then, and what came after under its own heading."""
    displaced(path)
    said = told(path, "w", at_s=610.0)
    assert said.startswith("at 10 min (tick 0):\nw: pending")
    before, later = said.split("\nlater:\n")
    assert "(preempt, accepted)" in before
    assert "11 min: start on 8 GPUs" in later


def test_the_whole_story_of_work_that_is_over_is_told(path: Path) -> None:
    """Submitted, waited and why, started where, evicted for which gang, and how long after its submission it ended."""
    low: dict[str, Any] = {"priority": 5}
    high: dict[str, Any] = {"priority": 9}
    record(
        path,
        [
            (seen(0, 60.0, holds("a", 8, **low)), None),
            (seen(1, 600.0, holds("a", 8, **low), waits("w", 8, submit_s=600.0, **high)), None),
            (seen(2, 640.0, waits("a", 8, incarnation=1, **low), waits("w", 8, submit_s=600.0, **high)), None),
            (seen(3, 700.0, waits("a", 8, incarnation=1, **low), holds("w", 8, start_s=650.0, **high)), None),
            (seen(4, 4300.0, holds("a", 8, start_s=4000.0, incarnation=1, **low)), None),
            (seen(5, 4900.0), None),
        ],
    )
    said = told(path, "a").splitlines()
    assert said[0] == (
        "a: finished, or was withdrawn at 1 h 21 min; submitted at 0 s, waited 1 h 1 min in total, ran 21 min on 8 "
        "GPUs, evicted once"
    )
    assert said[2] == "  0 s: submitted, for 8 GPUs"
    assert any(": evicted from 8 GPUs, " in line and ", for w: " in line for line in said)
    assert "  11 min: off its GPUs after 11 min" in said
    assert any(line.startswith("  1 h 11 min: waited 1 h 1 min: capacity ") for line in said)
    assert said[-1] == "  1 h 21 min: finished, or was withdrawn, 1 h 21 min after it was submitted"
    with pytest.raises(InputError, match="no workload 'x' at 1 h 21 min"):
        told(path, "x")


def test_work_that_starts_again_has_an_age_and_no_waiting_time(path: Path) -> None:
    """When it stopped is not on record: the time since its submission contains its runs."""
    record(path, [(seen(0, 900.0, waits("w", 8, incarnation=1)), None)], AUTO)
    said = told(path, "w")
    assert "waits again, 15 min after its submission, place 1 of 1 in the order of service" in said
    assert "start on 8 GPUs of 1 node again (submitted at 0 s)" in said


def test_work_that_waits_for_an_approval_is_told_so(path: Path) -> None:
    """Its start is proposed and held, which is not a start under way."""
    modes = replace(AUTO, modes=Modes(Mode.APPROVE, Mode.APPROVE))
    record(
        path,
        [(seen(n, 60.0 + 30 * n, waits("w", 8, submit_s=60.0)), None) for n in range(3)]
        + [(seen(3, 150.0, holds("w", 8, start_s=150.0)), None)],
        modes,
    )
    said = told(path, "w")
    assert ": waited 90 s: needs_approval 90 s" in said
    assert "under way" not in said


def test_a_record_of_another_version_is_told_as_it_stands(path: Path) -> None:
    """What this version would decide differently is not mixed with what was decided."""
    record(path, [(seen(0, 60.0, holds("a", 8), waits("w", 8)), None)], AUTO, noted=[Note("odd", About.CONTROLLER)])
    said = told(path, "w")
    assert "  held by capacity: 0 GPUs it may use are free, it needs 8" in said
    assert "(this version decides tick 0 differently at decision.notes" in said
    assert "what would free it" not in said


def test_work_that_waits_untouched_says_that_nothing_happened(path: Path) -> None:
    """Not an empty list of events."""
    record(path, [(seen(0, 60.0, holds("a", 8, state=State.RUNNING), waits("w", 8)), None)], AUTO)
    assert told(path, "w").endswith("no proposal or instruction for it up to the end of this journal")


def test_what_a_kill_switch_held_is_told(path: Path) -> None:
    """Refused as often as it was made, and no start."""
    record(path, [(seen(n, 60.0 + n, waits("w", 8), kill_switch=True), ()) for n in range(2)])
    said = told(path, "w")
    assert "everything is held: kill switch" in said
    happened = said[said.index("history:") :].splitlines()
    assert len(happened) == 3
    assert happened[2].startswith("  60 s: start on 8 GPUs of 1 node (submitted at 0 s)")
    assert "refused: kill_switch (the kill switch is on" in happened[2]
    assert happened[2].endswith("(admit_gang, refused) (2 times until 61 s)")


def test_a_tick_names_the_values_that_are_not_used(path: Path) -> None:
    """Gaps of the observation are listed with the object and the reason, ten of them, and all in the JSON."""
    gaps = (Gap("dcgm", "GPU-3", "power_w", "-7 is not possible: it is not used"), Gap("dcgm", "", "", "no answer"))
    record(path, [(replace(seen(1, 0.0, holds("a", 2)), gaps=gaps + gaps[:1] * 9), None)])
    found = explain_from(path, None, None, None)
    assert "  gap: power_w of GPU-3: -7 is not possible: it is not used" in found.lines
    assert "  gap: dcgm: no answer" in found.lines
    assert found.lines[-1] == "  and 1 more gap"
    assert len(found.document["gaps"]) == 11
    assert found.document["gaps"][0]["object_id"] == "GPU-3"


def test_a_tick_without_a_view_has_no_figure_of_the_cluster(path: Path) -> None:
    """Neither free GPUs nor reasons of waiting work: they are unknown, not none."""
    record(path, [(seen(0, 0.0, holds("a", 2)), None), (replace(blind(1, 60.0), signals=UNMEASURED), None)])
    before, found = (explain_from(path, tick, None, None) for tick in ("0", "1"))
    assert before.document["fragmentation"]["pools"]
    assert [found.document[name] for name in ("fragmentation", "waiting", "reservations")] == [None] * 3
    assert "  nothing of the cluster was known at this tick" in found.lines
    assert not [line for line in found.lines if "free" in line]


def test_advice_to_a_person_is_told_once_with_its_newest_figures(path: Path) -> None:
    """Work that only a person may stop is advised about at each look: one line, with the first and the last time."""
    about = (Evidence("gpus", 8), Evidence("owner", "t0/ada"), Evidence("why", "opted out"))
    noted = [Note("idle_advice", About.WORKLOAD, "a", 1800.0 + 300 * n, "s", about) for n in range(3)]
    record(path, [(seen(n, 3600.0 + 300 * n, holds("a", 8)), None) for n in range(3)], noted=noted)
    advice = [line for line in told(path, "a").splitlines() if "advice:" in line]
    assert advice == [
        "  1 h: advice: a has done nothing for 40 min on 8 GPUs of t0/ada; only a person may act: opted out "
        "(3 times until 1 h 10 min)"
    ]


def test_the_life_of_a_request_for_an_instance_names_its_profile(path: Path) -> None:
    """A request for 1g.10gb did not ask for a GPU."""
    cuts = {0: [("1g.10gb", 0), ("1g.10gb", 1)]}
    turns = [(seen(n, 60.0 * (n + 1), waits("i", 1, mig_profile=0), shape="1x2", cuts=cuts), None) for n in range(2)]
    record(path, [*turns, (seen(2, 200.0, shape="1x2", cuts=cuts), None)])
    said = told(path, "i")
    assert "submitted, for 1 instance of 1g.10gb" in said
    assert said.splitlines()[0].endswith("on 1 instance of 1g.10gb")


def blind(tick: int, now_s: float, *work: Item, lost: int = -1, complete: bool = False) -> Observation:
    """A tick whose source lists no work."""
    reason = "" if complete else "collector failed: RecursionError"
    view = View("kubernetes", "work", complete, now_s, len(work), 40, lost, reason)
    return seen(tick, now_s, *work, views=(view,))


def test_work_that_a_blind_view_does_not_list_is_unknown(path: Path) -> None:
    """It may run: it has neither finished nor left, and what follows continues its life."""
    runs = holds("a", 8, start_s=0.0)
    record(path, [(seen(0, 600.0, runs), None), (blind(1, 700.0), None)])
    text = told(path, "a")
    assert "a: unknown: the list of kubernetes is not complete (collector failed: RecursionError)" in text
    assert "finished" not in text
    assert "withdrawn" not in text


def test_work_that_a_blind_view_hid_goes_on(path: Path) -> None:
    """Its stretch is not cut, and its real end is told."""
    runs = holds("a", 8, start_s=0.0)
    over = Item("a", {"gpus": 8, "state": State.SUCCEEDED, "served_s": 900.0, "ended_s": 900.0})
    record(path, [(seen(0, 600.0, runs), None), (blind(1, 700.0), None), (seen(2, 800.0, runs), None)])
    assert "off its GPUs" not in told(path, "a")
    other = path.with_name("other.journal")
    record(other, [(seen(0, 600.0, runs), None), (blind(1, 700.0), None), (seen(2, 900.0, over), None)])
    assert "finished" in told(other, "a")


def test_work_that_a_complete_list_lacks_has_left(path: Path) -> None:
    """Its absence is known."""
    runs = holds("a", 8, start_s=0.0)
    starts = seen(0, 0.0, waits("a", 8))
    record(path, [(starts, None), (seen(1, 600.0, runs), None), (blind(2, 700.0, complete=True, lost=0), None)])
    assert "finished, or was withdrawn" in told(path, "a")


def test_a_name_without_its_namespace_is_found_where_one_has_it(path: Path) -> None:
    """Several are listed, and a name near a known one is named."""
    work = (waits("red/w", 16), waits("blue/w", 16), waits("blue/train", 16), waits("alone", 16))
    record(path, [(seen(0, 600.0, *work), None)])
    assert "blue/train: pending, 16 GPUs" in told(path, "train")
    assert "alone: pending, 16 GPUs" in told(path, "alone")
    with pytest.raises(InputError, match="'w' is the name of several workloads; write one of blue/w, red/w"):
        told(path, "w")
    with pytest.raises(InputError, match=r"no workload 'blue/tarin' at 10 min; did you mean blue/train\?"):
        told(path, "blue/tarin")
