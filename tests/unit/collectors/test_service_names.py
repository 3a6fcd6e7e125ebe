"""The service of a series, by the name of its pod."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.slo.naming import Key, Naming
from collectors.slo.queries import owner_of


@pytest.mark.parametrize(
    ("pod", "owner"),
    [
        ("chat-0", "chat"),
        ("llm-0-1", "llm-0"),
        ("chat-7d9f8b6c5d-x2x4z", "chat"),
        ("llama-3-8b-7d9f8b6c5d-x2x4z", "llama-3-8b"),
        ("dyn-0-prefill-x2x4z", "dyn-0-prefill"),
        ("dyn-0-vllmdecodeworker-x2x4z", "dyn-0-vllmdecodeworker"),
        ("dyn-0-decode-1-engine-ldr-x2x4z", "dyn-0-decode-1-engine-ldr"),
        ("dyn-0-p-x2x4z", "dyn-0-p"),
        ("server", ""),
    ],
)
def test_the_shape_of_the_name_of_a_pod_tells_its_owner(pod: str, owner: str) -> None:
    """StatefulSets, ReplicaSets, and PodCliques of Grove."""
    assert owner_of(pod) == owner


def named(pods: dict[str, str], pod: str, *known: str) -> tuple[str, str]:
    """Our name for the series of a pod that serves `llama`, and the gap."""
    naming, (space, _, name) = Naming({}), pod.partition("/")
    naming.known, naming.by_pod = (lambda: known), (lambda: pods)
    naming.learn([])
    return naming.name(Key("llama", space, owner_of(name))), naming.mixed()


def test_a_hash_that_looks_like_a_name_is_still_a_hash() -> None:
    """Where the cluster has the Deployment."""
    assert named({}, "prod/llama-3-8b-abcde-x2x4z", "prod/llama-3-8b")[0] == "prod/llama-3-8b"


def test_pods_whose_names_do_not_tell_them_apart_are_not_measured() -> None:
    """The names of both cliques look like hashes of one Deployment: a gap names the services."""
    pods = {"prod/s-0-bcdfg-x2x4z": "prod/s~prefill", "prod/s-0-bcdfh-x2x4z": "prod/s~decode"}
    name, gap = named(pods, "prod/s-0-bcdfg-x2x4z", "prod/s", *pods.values())
    assert name == "llama"
    assert gap == "names of pods do not tell apart prod/s~decode, prod/s~prefill: their series do not count"
    alone = {"prod/s-0-bcdfg-x2x4z": "prod/s"}
    assert named(alone, "prod/s-0-bcdfg-x2x4z", "prod/s") == ("prod/s", "")
    assert "do not tell apart" in named(alone, "prod/s-0-bcdfg-x2x4z", "prod/s", "prod/s-0")[1]


def test_a_pod_whose_name_tells_no_owner_counts_for_no_group() -> None:
    """A plain pod beside it could be meant as well."""
    name, gap = named({"prod/leader": "prod/llm"}, "prod/server", "prod/llm")
    assert (name, gap) == ("llama", "names of pods do not tell apart prod/llm: their series do not count")


PARTS = st.sampled_from(["a", "b", "0", "1", "bcdfg", "decode", "ldr", "x2x4z", "12345"])
PODS = st.lists(PARTS, min_size=1, max_size=5).map(lambda parts: "n/" + "-".join(parts))


@settings(max_examples=50)
@given(st.dictionaries(PODS, st.sampled_from(["n/a", "n/b~prefill", "n/b~decode"]), min_size=1, max_size=5))
def test_a_series_never_counts_for_the_service_of_another_pod(pods: dict[str, str]) -> None:
    """It counts for its own, or a gap says that names of pods do not tell some services apart."""
    for pod, service in pods.items():
        name, gap = named(pods, pod, "n/a", "n/b", "n/b~prefill", "n/b~decode")
        assert name == service or (gap and name not in pods.values())
