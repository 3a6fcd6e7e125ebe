"""Annotations by which owners tell other controllers to leave their pods where they run."""

from __future__ import annotations

import pytest

from tests.kits.field_kit import FOLDER, Played, objects_of, play, play_objects

NONE = FOLDER / "22-no-evict" / "none.yaml"


def _taken(played: Played) -> bool:
    """Whether a proposal with victims is accepted."""
    found = [each for _, _, decision in played.ticks for each in decision.plan.proposals]
    return any(each.accepted and each.victims for each in found)


@pytest.mark.parametrize("objects", ["safe-to-evict.yaml", "do-not-disrupt.yaml"])
def test_what_its_owner_marked_is_not_preempted(objects: str) -> None:
    """kubernetes/autoscaler#7269, run-house/kubetorch#2052."""
    played = play("22-no-evict", objects)
    assert not _taken(played)


@pytest.mark.parametrize(
    ("key", "value", "taken"),
    [
        ("karpenter.sh/do-not-evict", "true", False),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "False", False),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", True),
        ("karpenter.sh/do-not-disrupt", "false", True),
        ("example.com/safe-to-evict", "false", True),
        ("", "", True),
    ],
)
def test_only_the_words_for_staying_protect(key: str, value: str, taken: bool) -> None:
    """Other values and other annotations leave the pod as it is."""
    objects = objects_of(NONE)
    (train,) = [each for each in objects if each["metadata"]["name"] == "train"]
    train["metadata"]["annotations"] |= {key: value} if key else {}
    assert _taken(play_objects(objects)) == taken
