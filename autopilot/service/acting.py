"""The levers on a real cluster, as the settings enable them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from actuators.kubernetes.actuator import KubernetesActuator
from actuators.kubernetes.api import Api
from actuators.kubernetes.hook import Hooks
from actuators.kubernetes.levers import LEVERS, step_pause
from actuators.kubernetes.levers.base import Lever, Probe, Rule, Upkeep
from actuators.kubernetes.levers.leftover import LeftoverRetries
from actuators.kubernetes.levers.reservations import TakenQuota, WaitingChecks
from actuators.kubernetes.objects import Objects
from actuators.kubernetes.upkeep import (
    AbandonedRecuts,
    AbandonedTurns,
    ActiveCheck,
    LentWork,
    OldCeilings,
    OldOffers,
    OldPlacements,
    OldRequests,
)
from autopilot.core.model.modes import Modes
from autopilot.core.model.objects import Taken
from autopilot.core.model.policy import Policy
from autopilot.core.model.ports import PolicySource
from autopilot.core.model.records import Decision, NoteCode
from autopilot.core.model.verb import START
from autopilot.explain.notes import note_words
from autopilot.explain.proposals import Answer, answer_of, side_effect_words, taken_words
from autopilot.kube.access import Connections
from autopilot.service.capping import Capped, acts, further_modes, kinds_of
from autopilot.service.settings import Kubernetes
from autopilot.service.settings_collectors import Prometheus
from collectors.checkpoint_reports import CheckpointReports

log: Any = structlog.get_logger("cluster")


def cluster_actuator(settings: Kubernetes, access: Connections, objects: Objects) -> KubernetesActuator | None:
    """The actuator in front of the API server of the view; None if the settings do not say `act`."""
    if not settings.act:
        return None
    levers = enabled_levers(settings)
    keep = upkeep_of(levers)
    image, host = settings.sharing_probe_image, socket.gethostname()
    probe = Probe(image, settings.namespace) if image else None
    hooks = Hooks(secret=partial(_secret_in, settings.pause_secret_file))
    api = Api(access)
    return KubernetesActuator(api, objects, host, levers, upkeep=keep, probe=probe, hooks=hooks, on_problem=_say)


def upkeep_of(levers: Sequence[Lever]) -> tuple[Upkeep, ...]:
    """The upkeep within the rights of the levers."""
    kinds = frozenset(kind for lever in levers for kind in lever.kinds)
    kept: list[Upkeep] = [ActiveCheck(), OldPlacements(), TakenQuota(), WaitingChecks()] if "admit" in kinds else []
    kept += [LeftoverRetries(), LentWork()] if "evict" in kinds else []
    kept += [AbandonedRecuts()] if "recut" in kinds else []
    kept += [AbandonedTurns()] if "set_sharing" in kinds else []
    kept += [OldRequests()] if "provision" in kinds else []
    kept += [OldCeilings()] if "ceiling" in kinds else []
    kept += [OldOffers()] if any(_patches_nodes(rule) for lever in levers for rule in lever.rules) else []
    return tuple(kept)


def _patches_nodes(rule: Rule) -> bool:
    return rule.resource == "nodes" and "patch" in rule.verbs


def connect(
    actuator: object, policy: PolicySource, given: Prometheus | None, token: str
) -> Callable[[Decision], None] | None:
    """Show the actuator the acting actions, and the metrics of training programs if there is a Prometheus.

    It then removes the marks of actions that no longer act. Returns the receiver of decisions.
    """
    if not isinstance(actuator, KubernetesActuator):
        return None
    actuator.read_modes(lambda action: acts(policy.current(), action))
    if given is not None:
        headers = {"Authorization": f"Bearer {token}"} if token else None
        actuator.read_reports(CheckpointReports(given.url, headers=headers, matchers=given.matchers))
    return partial(tell_owners, actuator)


def tell_owners(actuator: KubernetesActuator, decision: Decision) -> None:
    """Let the actuator tell owners the decision's notes about their work."""
    texts = waiting_texts(decision)
    for keep in actuator.upkeep:
        if isinstance(keep, WaitingChecks):
            keep.tell(texts)
    for note in decision.notes:
        if note.code == NoteCode.PROTECTION_LENT:
            facts = {each.name: each.value for each in note.facts}
            for keep in actuator.upkeep:
                if isinstance(keep, LentWork):
                    keep.tell(str(facts["uid"]), int(facts["incarnation"]), note_words(note))


def waiting_texts(decision: Decision) -> dict[str, str]:
    """Words for the check of work, by uid: a start waiting for a person, and the GPUs or quota taken for starts."""
    said: dict[str, list[str]] = {}
    for each in decision.plan.proposals:
        answer = answer_of(each, decision.halted)
        for effect in each.change.side_effects:
            if effect.what != Taken.TURN and answer != Answer.REFUSED:
                said.setdefault(effect.uid, []).append(f"a start of {each.subject.name} takes {taken_words(effect)}")
        if each.change.wish != START or answer not in {Answer.NEEDS_APPROVAL, Answer.RECOMMENDED}:
            continue
        how = f"`autopilot approve {each.recommendation}`"
        if answer == Answer.RECOMMENDED:
            how = f"the mode of {each.action} takes no approval"
        own = said.setdefault(each.subject.uid, [])
        own.insert(0, "; ".join([f"its start waits for a person: {how}", *side_effect_words(each, of_turns=False)]))
    return {uid: "; ".join(words) for uid, words in said.items() if uid}


def enabled_levers(settings: Kubernetes) -> tuple[Lever, ...]:
    """The levers of the kinds of instructions allowed by the settings."""
    known = [each for each in LEVERS if settings.pause_secret_file is not None or each is not step_pause.LEVER]
    return tuple(each for each in known if not settings.act_kinds or each.kinds & set(settings.act_kinds))


def _secret_in(path: Path | None) -> str:
    """The secret of a file that may change; "" where it cannot be read."""
    try:
        return path.read_text("utf-8").strip() if path is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        log.warning("pauses are refused", reason=f"{path}: the secret cannot be read: {error}")
        return ""


def may_resize(settings: Kubernetes) -> bool:
    """True if the width of elastic Jobs may change."""
    return settings.act and any("resize" in each.kinds for each in enabled_levers(settings))


def _say(outage: str) -> None:
    if outage:
        log.warning("effects wait", reason=outage)
    else:
        log.info("effects go on")


def lever_lines(settings: Kubernetes, policy: Policy | None) -> list[str]:
    """The levers for the modes of a policy, and the actions that only recommend for lack of one.

    Without a policy, because it is in the cluster: those for any policy.
    """
    levers = enabled_levers(settings)
    capped = Capped(frozenset(kind for lever in levers for kind in lever.kinds))
    wanted = further_modes(policy) if policy is not None else list(Modes.__dataclass_fields__)
    kinds = frozenset[str]().union(*(kinds_of(name) for name in wanted if capped.allows(name)))
    lines = [f"lever        {each.name}: {each.words}" for each in levers if each.kinds & kinds]
    without = [name for name in wanted if not capped.allows(name)]
    if without:
        lines.append(f"no lever     only recommended: {', '.join(without)}")
    return lines or ["lever        none: no mode of the policy goes further than recommend"]
