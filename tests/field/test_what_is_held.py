"""What running and ended pods hold, as users of schedulers have reported it."""

from __future__ import annotations

from tests.kits.field_kit import play


def test_pods_that_have_ended_hold_nothing() -> None:
    """Four pods of a Job of eight have succeeded (kubernetes-sigs/kueue#78)."""
    played = play("09-reclaimable-control", "objects.yaml")
    assert played.held()["team/emb"] == 4
    assert played.free_gpus == 4


def test_a_pod_that_the_kubelet_refused_holds_nothing() -> None:
    """It has a node and the phase Failed (kubernetes/kubernetes#130145)."""
    played = play("10-refused-pod-control", "objects.yaml")
    assert played.held()["team/ok"] == 2
    assert not played.held().get("team/bad")
    assert played.allocated_gpus == 2
