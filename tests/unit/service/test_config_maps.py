"""Policy and kill switch from ConfigMaps: what is gone or invalid caps every mode, and stops every effect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autopilot.core.model.modes import Mode, Modes
from autopilot.kube.cluster_api import Answer
from autopilot.service.capping import Capped
from autopilot.service.cluster_policy import EVERY_S, ClusterPolicySource, PolicyMap, PolicyObject
from autopilot.service.config_maps import KEPT_S, MapName, MapSwitch
from autopilot.service.kill_switch import KillSwitch
from autopilot.settings import policy_names, shipped_policy

NAME = MapName("ops", "rules")
PATH = "/api/v1/namespaces/ops/configmaps/rules"
AUTO = "base: recommend\nmodes: {admit_gang: auto, backfill: approve, resize: 'off'}\n"


class Maps:
    """One ConfigMap behind an API server, and a clock that stands."""

    def __init__(self, **data: str) -> None:
        self.answer = Answer(200, json.dumps({"data": data}))
        self.reads, self.now_s = 0, 0.0

    def get(self, path: str) -> Answer:
        assert path == PATH
        self.reads += 1
        return self.answer

    def says(self, **data: str) -> None:
        self.answer = Answer(200, json.dumps({"data": data}))


def _source(maps: Maps, folder: Path) -> ClusterPolicySource:
    return ClusterPolicySource(maps.get, PolicyMap(NAME), folder / "policy.yaml", lambda: maps.now_s)


def _furthest(modes: Modes) -> Mode:
    found: list[Mode] = [getattr(modes, name) for name in Modes.__dataclass_fields__]
    return max(found, key=list(Mode).index)


def test_a_policy_in_a_map_is_obeyed_and_read_again(tmp_path: Path) -> None:
    """It is named after the map, the same object while nothing changes, and read at most every `EVERY_S`."""
    maps = Maps(**{"policy.yaml": AUTO})
    source = _source(maps, tmp_path)
    policy = source.current()
    assert (policy.name, policy.modes.admit_gang, source.problem) == ("rules", Mode.AUTO, None)
    assert source.current() is policy
    assert maps.reads == 1
    maps.says(**{"policy.yaml": "base: recommend\n"})
    maps.now_s = EVERY_S
    assert source.current().modes.admit_gang == Mode.RECOMMEND


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(404, "{}"), "ConfigMap ops/rules: it does not exist; `kubectl create -f deploy/settings.yaml`"),
        (Answer(0, "timed out"), "the API server does not answer: timed out"),
        (Answer(403, json.dumps({"message": "configmaps is forbidden"})), "it cannot be read: configmaps is forbidden"),
        (Answer(200, json.dumps({"data": {"other": "x"}})), "it has no key policy.yaml; add it"),
        (Answer(200, json.dumps({})), "it has no key policy.yaml; add it"),
        (Answer(200, json.dumps({"data": {"policy.yaml": "modes: {admit_gang: always}"}})), "admit_gang"),
        (Answer(200, json.dumps({"data": {"policy.yaml": "<b>&"}})), "not a policy"),
        (Answer(200, "no JSON"), "it has no key policy.yaml"),
    ],
)
def test_a_map_that_is_gone_or_invalid_caps_the_last_policy(tmp_path: Path, answer: Answer, words: str) -> None:
    """Modes beyond `recommend` come back to it, those below stay; a valid map ends that at once."""
    maps = Maps(**{"policy.yaml": AUTO})
    source = _source(maps, tmp_path)
    before, valid = source.current(), maps.answer
    maps.answer, maps.now_s = answer, EVERY_S
    capped = source.current()
    assert words in (source.problem or "")
    assert (_furthest(capped.modes), capped.modes.resize) == (Mode.RECOMMEND, Mode.OFF)
    assert source.current() is capped
    maps.answer, maps.now_s = valid, 2 * EVERY_S
    assert source.current() is before
    assert source.problem is None


def test_a_restart_without_the_map_keeps_the_last_policy(tmp_path: Path) -> None:
    """It was written to the state folder; without any, the shipped policy `recommend` is in force."""
    maps = Maps(**{"policy.yaml": "base: recommend\norder: {max_wait_s: 1234}\n"})
    assert _source(maps, tmp_path).current().order.max_wait_s == 1234
    maps.answer = Answer(404, "{}")
    again = _source(maps, tmp_path)
    assert again.current().order.max_wait_s == 1234
    assert again.problem
    (tmp_path / "policy.yaml").write_text("modes: [")
    assert _source(maps, tmp_path).current().modes == shipped_policy("recommend").modes


def test_no_mode_of_a_capped_policy_goes_further_than_recommend() -> None:
    """For every shipped policy; modes that were not above are not changed, and the object is kept."""
    capped = Capped()
    for name in policy_names():
        policy = shipped_policy(name)
        found = capped.of(policy)
        assert list(Mode).index(_furthest(found.modes)) <= list(Mode).index(Mode.RECOMMEND)
        for field in Modes.__dataclass_fields__:
            mode = getattr(policy.modes, field)
            assert getattr(found.modes, field) == (mode if mode in {"off", "observe", "recommend"} else Mode.RECOMMEND)
        assert capped.of(policy) is found


@pytest.mark.parametrize(
    ("data", "on"),
    [
        ({"kill": "off"}, ""),
        ({"kill": " OFF\n"}, ""),
        ({"kill": "on"}, "ConfigMap ops/rules sets kill to 'on'"),
        ({"kill": ""}, "ConfigMap ops/rules sets kill to ''"),
        ({}, "the kill switch cannot be read: ConfigMap ops/rules: it has no key kill; add it"),
    ],
)
def test_a_switch_in_a_map_fails_closed(tmp_path: Path, data: dict[str, str], on: str) -> None:
    """Only a map that says `off` lets effects leave; the file and the environment count beside it."""
    maps = Maps(**data)
    switch = KillSwitch(tmp_path / "kill", {}, MapSwitch(maps.get, NAME, lambda: maps.now_s).reason)
    assert switch.reason() == on
    assert (switch.reason(), maps.reads) == (on, 1)
    maps.answer, maps.now_s = Answer(404, "{}"), KEPT_S
    assert "does not exist" in switch.reason()
    (tmp_path / "kill").touch()
    assert "exists" in switch.reason()


class Objects:
    """One AutopilotPolicy behind an API server, and a clock that stands."""

    def __init__(self) -> None:
        self.answer, self.now_s, self.generation = Answer(404, "{}"), 0.0, 0

    def get(self, path: str) -> Answer:
        assert path == "/apis/gpu-autopilot.io/v1alpha1/autopilotpolicies/night"
        return self.answer

    def says(self, spec: dict[str, object]) -> None:
        self.generation += 1
        self.now_s += EVERY_S
        meta = {"name": "night", "uid": "u", "generation": self.generation, "managedFields": []}
        self.answer = Answer(200, json.dumps({"metadata": meta, "spec": spec, "status": {"halted": "x"}}))


def test_a_policy_object_is_obeyed_with_its_generation(tmp_path: Path) -> None:
    """It is named after the object; its status and metadata do not count."""
    found = Objects()
    source = ClusterPolicySource(found.get, PolicyObject("night"), tmp_path / "last", lambda: found.now_s)
    assert source.current().modes == shipped_policy("recommend").modes
    assert "does not know this kind; apply deploy/crds/" in str(source.problem)
    found.says({"base": "recommend", "modes": {"backfill": "approve"}})
    assert (source.current().modes.backfill, source.current().name) == (Mode.APPROVE, "night")
    assert (source.problem, source.generation, source.read_generation) == (None, 1, 1)


def test_an_invalid_policy_object_leaves_the_last_one_capped(tmp_path: Path) -> None:
    """The message names the object, the field and the nearest name; the generation in force stays."""
    found = Objects()
    source = ClusterPolicySource(found.get, PolicyObject("night"), tmp_path / "last", lambda: found.now_s)
    found.says({"base": "recommend", "modes": {"backfill": "auto"}})
    source.current()
    found.says({"base": "recommend", "modes": {"backfil": "auto"}})
    assert source.current().modes.backfill == Mode.RECOMMEND
    assert source.written.modes.backfill == Mode.AUTO
    assert source.problem == "AutopilotPolicy night: modes.backfil: no such field, did you mean backfill?"
    assert (source.generation, source.read_generation) == (1, 2)
