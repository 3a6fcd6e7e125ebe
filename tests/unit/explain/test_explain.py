from __future__ import annotations

import re
from dataclasses import replace

import pytest

from autopilot.app.decisions.decision_log import DecisionLog
from autopilot.app.runs.recorder import DecisionRecorder
from autopilot.core.model.modes import MODE_UNIT
from autopilot.core.model.policy import Mode, Modes
from autopilot.core.model.records import Code, Evidence, Loss, Slot, Verdict, Victim
from autopilot.core.trust import telemetry_guard as telemetry
from autopilot.explain.cases import fact_words, quantity
from autopilot.explain.proposals import (
    REASONS,
    code_words,
    evidence_words,
    explain_decision,
    proposal_words,
    verdict_words,
    victim_words,
)
from autopilot.explain.view import explain_proposal, view_of
from tests.golden.explanation_scenes import REAL, proposal_for
from tests.kits.core_world import (
    AUTO,
    HOLDING,
    decide,
    holds,
    observe,
    proposals,
    snapshot,
    waits,
    with_policy,
    world,
)
from tests.kits.proposals import propose
from tests.kits.story_kit import EAGER, tree, with_columns

ALL_ON = Modes(*[Mode.AUTO] * len(Modes.__dataclass_fields__))


def slots(*nodes: tuple[str, int], milli: int = 1000, instance: str = "") -> tuple[Slot, ...]:
    """A given number of GPUs of each node."""
    return tuple(
        Slot(node, f"{node}/{gpu}", instance and f"{instance}{gpu}", milli)
        for node, count in nodes
        for gpu in range(count)
    )


# --- codes ------------------------------------------------------------------------------------------


def test_every_code_has_a_sentence_of_its_own() -> None:
    """No reason is printed as its bare code, and no two read the same."""
    assert set(REASONS) == set(Code)
    assert len(set(REASONS.values())) == len(Code)
    for code in Code:
        said = code_words(code, 3.0, 8.0)
        assert said != code.value
        assert "{" not in said
        assert len(said.split()) >= 2


@pytest.mark.parametrize("code", [code for code in Code if "{value}" in REASONS[code]])
def test_a_code_says_the_number_that_it_was_judged_by(code: Code) -> None:
    """Large numbers have separators, parts of a GPU their digits, and what is unknown is no number."""
    assert "1,234" in code_words(code, 1234.0, 5678.0)
    assert "0.25" in code_words(code, 0.25, 0.5)
    for unknown in (float("nan"), float("inf")):
        said = code_words(code, unknown, 8.0)
        assert "an unknown number of" in said
        assert not {"nan", "inf"} & set(said.split())


def test_the_new_reasons_say_what_they_are_about() -> None:
    """Spot checks with value and threshold in their places."""
    assert code_words(Code.GUARANTEE, 1.0, 4.0).endswith("1 GPU of them is left on the path of its queue, it needs 4")
    assert code_words(Code.DELAY, 60.0, 90.0) == "it has waited 60 s of the 90 s before it may preempt"
    assert "quota for 2 more GPUs, it needs 8" in code_words(Code.QUOTA, 2.0, 8.0)
    assert "take 40 s to write" in code_words(Code.BUDGET_CHECKPOINT, 40.0, 30.0)
    assert "12.5 GPUs for each that it needs, at most 4" in code_words(Code.BLAST_RADIUS, 12.5, 4.0)
    assert "at 1.8 times its latency objective" in code_words(Code.SLO_BURNING, 1.8, 1.0)


# --- proposals --------------------------------------------------------------------------------------


def test_what_a_guard_measured_has_its_unit() -> None:
    """Durations in words, a mode by its name, anything else as a number with its limit."""
    dwell = Verdict("hysteresis", False, Code.DWELL, 180.0, "s since first proposed", 600.0, at_least=True)
    assert verdict_words(dwell).endswith("(3 min since first proposed, at least 10 min)")
    assert verdict_words(Verdict("freshness", True, Code.OK, 4.0, "s", 60.0)) == "freshness: ok (4 s, at most 60 s)"
    for number, mode in enumerate(Mode):
        assert verdict_words(Verdict("mode", True, Code.OK, float(number), MODE_UNIT, 4.0)) == f"mode: ok (mode {mode})"
    assert verdict_words(Verdict("slo", True, Code.OK, 0.5, "worst p99", 1.0)) == "slo: ok (0.5 worst p99, at most 1)"
    doubt = Verdict("telemetry", True, Code.OK, 0.0, telemetry.UNIT, 8.0)
    assert verdict_words(doubt) == "telemetry: ok (0 of 8 GPUs or instances in doubt)"


def test_a_guard_says_on_which_side_of_its_limit_it_allows() -> None:
    """Whatever the scenes of all explanations measured lies on the side that the words name, if it was allowed."""
    seen = 0
    for key in REAL:
        for each in proposal_for(key).verdicts:
            if each.code != Code.OK or each.unit in {MODE_UNIT, telemetry.UNIT}:
                continue
            least = " at least " in verdict_words(each)
            assert each.value >= each.threshold if least else each.value <= each.threshold, (key, each)
            seen += 1
    assert seen > 400


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (6.16943, "requests/s", "6.17 requests/s"),
        (0.863724, "of the outcomes within the promise", "86.4 % of the outcomes within the promise"),
        (402.0, "GPU-s", "0.112 GPU-h"),
        (180.0, "s since first proposed", "3 min since first proposed"),
    ],
)
def test_a_number_is_told_in_three_digits_and_in_the_unit_that_people_use(value: float, unit: str, words: str) -> None:
    """Of a verdict as of evidence."""
    assert quantity(value, unit) == words
    assert words.split(" ", maxsplit=1)[0] in evidence_words(Evidence("found", value, unit))
    assert verdict_words(Verdict("g", True, Code.OK, value, unit, value)).startswith(f"g: ok ({words}, at most ")


def test_work_without_a_user_is_told_with_its_tenant() -> None:
    """An owner is a tenant and a user; `notify language/:` is no name."""
    assert fact_words(Evidence("owner", "language/")) == "tenant language (owner unknown)"
    assert fact_words(Evidence("owners", "language/, vision/ann")) == "tenant language (owner unknown), vision/ann"


def test_each_way_of_giving_way_is_told_with_its_numbers() -> None:
    """Evicted, shrunk to what, moved where; the lost work; and whether it was owed."""
    evicted = Victim("a", 1, 8, 900.0, contract=True)
    shrunk = Victim("b", 0, 4, 7200.0, contract=False, how="shrink", keeps=slots(("n1", 4), ("n2", 2)))
    moved = Victim("c", 0, 2, 0.0, contract=False, how="move", keeps=slots(("n3", 2)))
    assert victim_words(evicted) == "a: evicted from 8 GPUs, expected loss 0.25 GPU-h, by contract"
    assert victim_words(shrunk) == "b: shrinks by 4 to 6 GPUs (n1 x 4, n2 x 2), expected loss 2 GPU-h"
    assert victim_words(moved) == "c: moves to n3 x 2, expected loss 0 GPU-h"


def test_a_landing_names_its_place_and_the_first_victims() -> None:
    """Seven victims: five by name, the rest counted; a landing on what leaves by itself says so."""
    victims = tuple(Victim(f"v{n}", 0, 1, 10.0, contract=False) for n in range(7))
    at = (Evidence("submitted", 3480.0, "time"),)
    said = proposal_words(propose("pipeline", slots=slots(("n0", 8)), victims=victims, evidence=at))
    assert said.startswith(
        "start on 8 GPUs of 1 node (submitted at 58 min) by preempting or moving others: "
        "v0: evicted from 1 GPU, expected loss 0.167 GPU-min; v1"
    )
    assert "v4" in said
    assert "v5" not in said
    assert said.endswith("; and 2 more")
    alone = proposal_words(propose("pipeline", slots=slots(("n0", 8)), evidence=at, reason="leaving"))
    assert "nothing more is stopped for it" in alone


def test_shares_and_instances_are_not_called_whole_gpus() -> None:
    """Half a GPU is a share, a cut an instance."""
    share = proposal_words(propose("admit", "admit_gang", slots=slots(("n0", 1), milli=500)))
    cut = proposal_words(propose("admit", "admit_gang", slots=slots(("n0", 2), instance="i")))
    assert share.startswith("start on 1 share (0.5 GPUs) of 1 node")
    assert cut.startswith("start on 2 MIG instances of 1 node")


def test_a_refusal_follows_the_words() -> None:
    """Every guard that refused is told, none that allowed."""
    verdicts = (
        Verdict("gang", True, Code.OK, 8.0, "GPUs", 8.0),
        Verdict("slo", False, Code.SLO_BURNING, 2.0, "", 1.0),
    )
    said = proposal_words(propose("admit", slots=slots(("n0", 8)), verdicts=verdicts))
    assert said.count(";") == 1
    assert said.endswith(f"; refused: slo_burning ({code_words(Code.SLO_BURNING, 2.0, 1.0)})")


def test_a_reclaim_is_explained_with_victims_contract_and_for_whom() -> None:
    """The whole case of a landing as the decision makes it: who shrinks, the loss, why it is not weighed."""
    queues = tree(("a", 0, -1, 4), ("b", 0, -1, 4))
    observation = world(
        "1x8",
        [holds("big", 8, queue=2, gpus_per_member=2, min_gpus=2), waits("w", 4, gpus_per_member=2, queue=1)],
        now_s=600.0,
        queues=queues,
    )
    step = decide(observation, EAGER)
    case = explain_proposal(view_of(proposals(step, "pipeline")["w"], step.decision))
    assert "accepted at 10 min" in case[0]
    assert "  for w:" in case
    assert (
        "  victim big: shrinks by 4 to 4 GPUs (node-0 x 4), expected loss 0.667 GPU-h, by contract (restart 0)" in case
    )
    assert "  in all 4 GPUs of 1 gang, expected loss 0.667 GPU-h" in case
    assert "  by contract, hence neither weighed nor budgeted: the queue of w stays within its guarantee" in case


def test_the_row_of_the_page_has_every_victim() -> None:
    """As the recorder of a run writes it: the words name the first, the whole case all of them."""
    low = [holds(f"v{n}", 1, priority=1, gpus_per_member=1) for n in range(8)]
    observation = world("1x8", [*low, waits("w", 8, priority=9)], now_s=600.0)
    policy = with_policy(EAGER, budget={"per_node": 100, "per_tenant": 100, "concurrent": 100})
    step = decide(observation, policy)
    log = DecisionLog()
    DecisionRecorder(log).on_tick(observation, step.decision)
    (row,) = log.rows()
    assert (row.action, row.gpus) == ("preempt", 8)
    assert row.answer == "accepted"
    assert list(row.case) == explain_proposal(view_of(step.decision.plan.proposals[0], step.decision))
    assert row.why.endswith("; and 3 more")


def test_a_decision_of_the_page_has_what_its_victims_really_lost() -> None:
    """A later decision says it; the case ends with it, beside what was expected."""
    low, high = holds("v", 8, priority=1), waits("w", 8, priority=9)
    step = decide(world("1x8", [low, high], now_s=600.0), EAGER)
    identity = step.decision.plan.proposals[0].id
    log = DecisionLog()
    log.take_in(world("1x8", [low, high], now_s=600.0), step.decision)
    loss = Loss(identity, "v", 0, 1080.0, 8640.0, 57_600.0)
    later = replace(step.decision, now_s=660.0, losses=(loss,))
    log.take_in(world("1x8", [], now_s=660.0), later)
    (row,) = log.rows()
    assert row.really_lost_gpu_s == 1080.0
    assert row.case[-1] == "  v lost 0.3 GPU-h (expected 2.4 GPU-h, worst case 16 GPU-h)"


def test_what_waiting_work_waits_for_is_added_up_by_queue_and_reason() -> None:
    """GPUs asked for x time since the tick that gave the reason; a decision made again is kept once."""
    log = DecisionLog()
    for now_s in (600.0, 660.0, 780.0):
        observation = world("1x8", [holds("a", 8), waits("w", 8), waits("x", 2)], now_s)
        log.take_in(observation, decide(observation, AUTO).decision)
    assert log.waited_gpu_s == {("root", "capacity"): 180.0 * 10}
    assert log.rows() == ()


def test_a_broken_gang_is_stopped_for_its_own_sake() -> None:
    """`recover` evicts for no other gang: the text names no beneficiary, and states how long it was broken."""
    observation = with_columns(
        world("1x8", [holds("a", 4, gpus_per_member=2, stale_since_s=100.0)], now_s=600.0), gpus=8, min_gpus=8
    )
    step = decide(observation, replace(AUTO, modes=ALL_ON))
    found = proposals(step, "evict")["a"]
    case = "\n".join(explain_proposal(view_of(found, step.decision)))
    assert "stop what is left of it (4 GPUs): for 8 min it has had fewer members than its minimum" in case
    assert "  for a:" not in case
    assert "neither weighed nor budgeted: a gang below its minimum of members cannot make progress" in case


def test_growth_is_told_from_width_to_width() -> None:
    """An elastic gang at half its width."""
    observation = with_columns(world("1x8", [holds("e", 4, gpus_per_member=2)], now_s=600.0), gpus=8, min_gpus=2)
    step = decide(observation, replace(AUTO, modes=ALL_ON))
    said = proposal_words(proposals(step, "grow")["e"])
    assert said.startswith("grow from 4 to 8 GPUs of 1 node (full width 8)")


def test_backfill_that_is_due_gives_way_by_contract() -> None:
    """The eviction names the reserved gang, the promise that binds, and that nothing is weighed."""
    work = [holds("filler", 4, backfilled=True, gpus_per_member=4), waits("big", 8, submit_s=-10.0)]
    step = decide(observe(snapshot("1x8", work), 60.0, total_s={"filler": 4000.0}), HOLDING)
    found = proposals(step, "evict")["big"]
    case = "\n".join(explain_proposal(view_of(found, step.decision)))
    assert (
        "evict backfilled work so that big can start on the room reserved for it: filler: evicted from 4 GPUs, "
        "expected loss 4 GPU-min, by contract" in case
    )
    assert "  for big:" in case
    assert "backfilled work starts on the condition that it leaves when the reservation is due" in case


def test_a_tick_counts_who_waits_by_reason() -> None:
    """Starts, promises and the first of each reason in order."""
    step = decide(
        world("1x8", [holds("a", 8), waits("b", 8), waits("c", 4, submit_s=5.0)], 60.0, total_s={"a": 600.0}),
        with_policy(HOLDING, backfill={"evict_when_due": False}),
    )
    lines = explain_decision(step.decision)
    assert lines[0] == "tick 0 at 60 s: 1 proposal: 1 accepted"
    assert any(
        re.fullmatch(r"  accepted: reserve-b-\w+: no room yet: hold 8 GPUs for it, planned to start in 9 min", line)
        for line in lines
    )
    assert "  2 workloads wait, capacity: first in order: 0 GPUs it may use are free, it needs 8" in lines


@pytest.mark.parametrize(("at_s", "counts"), [(900.0, (1, 1, 0)), (5000.0, (1, 0, 1))])
def test_a_promise_is_kept_by_a_start_in_the_place_of_others_too(at_s: float, counts: tuple[int, int, int]) -> None:
    """A gang with a promise starts pipelined on the GPUs of its victims: on time, or late; it is not left open."""
    promised = decide(world("1x8", [holds("v", 8), waits("w", 8)], 0.0, total_s={"v": 1000.0, "w": 50.0}), HOLDING)
    recorder = DecisionRecorder()
    recorder.on_tick(world("1x8", []), promised.decision)
    observation = world("1x8", [holds("v", 8), waits("w", 8, priority=5)], at_s)
    pipelined = decide(observation, EAGER)
    assert [each.kind for each in pipelined.decision.plan.proposals] == ["pipeline"]
    recorder.on_tick(observation, pipelined.decision)
    found = recorder.reservations()
    assert (found.made, found.kept, found.late) == counts


@pytest.mark.parametrize(
    ("code", "value", "threshold", "words"),
    [
        (Code.PROTECTED, 0.0, 1.0, "all work that it could preempt for its 1 GPU is protected"),
        (Code.CAPACITY, 1.0, 2.0, "1 GPU it may use is free, it needs 2"),
        (Code.CAPACITY, float("nan"), 2.0, "an unknown number of GPUs it may use are free, it needs 2"),
        (Code.BUDGET_NODE, 1.0, 0.0, "1 disruption in the window exceeds the node's 0"),
    ],
)
def test_a_reason_agrees_with_its_count(code: Code, value: float, threshold: float, words: str) -> None:
    """Noun and verb follow the number."""
    assert code_words(code, value, threshold) == words
