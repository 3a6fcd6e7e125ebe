from __future__ import annotations

from dataclasses import replace
from math import isnan

from autopilot.core.model.memory.people import OpenProposal
from autopilot.core.model.records import Code, Decision, Plan, Verdict, Victim, no_refusals
from autopilot.explain.view import explain_proposal, figure_words, figures_of, view_of
from tests.kits.proposals import propose

VICTIM = Victim("v", 0, 8, 402.0, contract=False, worst_gpu_s=8000.0)
ASKS = Verdict("mode", False, Code.NEEDS_APPROVAL, 0.0, "", 0.0)
ONE = propose("evict", victims=(VICTIM,), benefit_gpu_s=8640.0, cost_gpu_s=500.0, verdicts=(ASKS,))
DECISION = Decision(7, 7200.0, Plan((ONE,), no_refusals(), (), ()))


def test_a_cost_names_its_worst_case_where_that_is_more() -> None:
    """The worst case of the victims takes the place of their expected loss; several proposals add up."""
    figures = figures_of([ONE])
    assert (figures.worst_cost_gpu_s, figures.worst_lost_gpu_s, figures.gpus, figures.victims) == (8098.0, 8000.0, 8, 1)
    words = {
        "gain": "2.4 GPU-h",
        "cost": "0.139 GPU-h, worst case 2.25 GPU-h",
        "loss": "0.112 GPU-h, worst case 2.22 GPU-h",
    }
    assert figure_words(figures) == words
    assert figure_words(figures_of([ONE, ONE]))["gain"] == "4.8 GPU-h"
    sure = propose("evict", victims=(Victim("v", 0, 8, 402.0, contract=False, worst_gpu_s=402.0),), cost_gpu_s=500.0)
    assert figure_words(figures_of([sure]))["cost"] == "0.139 GPU-h"


def test_a_gain_that_a_contract_makes_needless_is_not_shown_as_zero() -> None:
    """A reclaim that gains nothing by any weight is not worthless; beside weighed ones it adds nothing."""
    owed = propose("evict", victims=(replace(VICTIM, contract=True),), cost_gpu_s=500.0)
    assert isnan(figures_of([owed, owed]).gain_gpu_s)
    assert figure_words(figures_of([owed]))["gain"] == "not weighed"
    assert figure_words(figures_of([owed, ONE]))["gain"] == "2.4 GPU-h"


def test_an_explanation_says_since_when_it_is_recommended() -> None:
    """Not the time of the tick; and when plan or figures changed since, that too."""
    shown = view_of(ONE, DECISION, {ONE.recommendation: OpenProposal(ONE, 3600.0, 5400.0)})
    assert explain_proposal(shown)[0].endswith("at 2 h (tick 7)")
    assert "  gain 2.4 GPU-h, cost 0.139 GPU-h, worst case 2.25 GPU-h" in explain_proposal(shown)
    assert "  recommended since 1 h, changed at 1 h 30 min" in explain_proposal(shown)
    unknown = view_of(ONE, DECISION)
    assert isnan(unknown.since_s)
    assert not any("recommended since" in line for line in explain_proposal(unknown))
