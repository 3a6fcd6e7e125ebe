"""Changes of a tick as events of the log: each once at its start and once at its end."""

from __future__ import annotations

from typing import Any

import structlog

from autopilot.core.model.records import OutcomeKind
from autopilot.explain.proposals import Answer, answer_of
from autopilot.service.published import Published

log: Any = structlog.get_logger("tick")


class TickLog:
    """Writes accepted decisions, and the differences from the tick before."""

    def __init__(self) -> None:
        self._held: dict[str, str] = {}
        self._note = ""

    def tick(self, published: Published) -> None:
        """One tick ended."""
        decision = published.decision
        log.debug("tick", tick=decision.tick, now_s=decision.now_s, took_s=round(published.took_s, 4))
        for proposal in decision.plan.proposals:
            if answer_of(proposal, decision.halted) == Answer.ACCEPTED:
                log.info("accepted", tick=decision.tick, id=proposal.id, action=proposal.action)
        for outcome in published.observation.outcomes:
            if outcome.reason:
                kind = outcome.kind.value
                cause = {"cause": outcome.cause.value} if outcome.cause else {}
                say = log.info if outcome.kind in {OutcomeKind.ACCEPTED, OutcomeKind.DONE} else log.warning
                say("effect", id=outcome.instruction_id, outcome=kind, **cause, reason=outcome.reason)
        if published.policy_note != self._note:
            self._note = published.policy_note
            log.info("policy", note=self._note or "nothing is held back")
        holds = {"halted": decision.halted, "policy": published.policy_problem, "kill switch": published.kill_reason}
        holds |= {f"collector {each.name}": each.problem for each in published.collectors}
        self._say(holds, decision.tick)

    def _say(self, holds: dict[str, str], tick: int) -> None:
        for what, reason in holds.items():
            if reason == self._held.get(what, ""):
                continue
            if reason:
                log.warning("trouble begins", what=what, tick=tick, reason=reason)
            else:
                log.info("trouble ends", what=what, tick=tick)
        self._held = holds
