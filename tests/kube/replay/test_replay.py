"""The server is held to what real servers were recorded to answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, find_shared_data
from tests.kube.replay.__main__ import main, player
from tests.kube.replay.differences import COUNTED, MOST_RATIO, listed
from tests.kube.replay.play import Player
from tests.kube.replay.recording import parse
from tests.kube.replay.rename import rename

DATA = find_shared_data()
FOLDER = DATA / "kube" / "recordings" if DATA is not None else None
FILES = sorted(FOLDER.glob("*.json")) if FOLDER is not None else []
needs_recordings = pytest.mark.skipif(not FILES, reason="no recordings: set AUTOPILOT_SHARED_DATA")


@needs_recordings
@pytest.mark.parametrize("topic", COUNTED)
def test_every_step_is_reproduced_or_listed(topic: str) -> None:
    """A step that differs is in differences.toml, and one that is listed still differs."""
    (path,) = [each for each in FILES if each.name.startswith(f"{topic}-")]
    rows = player(path).play()
    known = {name for each, name in listed() if each == path.stem}
    differs = {row.name: row.difference for row in rows if not row.passed}
    assert {name: differs[name] for name in differs if name not in known} == {}
    assert known - differs.keys() == set(), "reproduced: take it out of differences.toml"


@needs_recordings
def test_few_steps_are_listed() -> None:
    """The list holds at most a tenth of the steps, and each of its steps is one of a recording, with a reason."""
    steps = [json.loads(path.read_text())["steps"] for path in FILES if path.name.partition("-")[0] in COUNTED]
    assert len(listed()) <= MOST_RATIO * sum(map(len, steps))
    names = {(path.stem, step["name"]) for path in FILES for step in json.loads(path.read_text())["steps"]}
    assert listed().keys() <= names
    assert all(listed().values())


@needs_recordings
@pytest.mark.parametrize(("topic", "seed"), [("06", 7), ("10", 7), ("23", 3), ("24", 7), ("28", 11), ("31", 3)])
def test_other_names_uids_and_times_make_no_difference(topic: str, seed: int) -> None:
    """The share of differing steps does not rise when a recording is renamed."""
    (path,) = [each for each in FILES if each.name.startswith(f"{topic}-")]
    known = {name for each, name in listed() if each == path.stem}
    assert {row.name for row in player(path, seed=seed).play() if not row.passed} <= known


def _recording(**response: Any) -> dict[str, Any]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map-1"}, "data": {"k": "1"}}
    request = {
        "method": "POST",
        "path": "/api/v1/namespaces/ns-1/configmaps",
        "query": {},
        "headers": {},
        "as": "admin",
    }
    stored = body | {"metadata": {"name": "map-1", "namespace": "ns-1", "uid": "u", "resourceVersion": "9"}}
    step = {
        "name": "create one",
        "why": "",
        "t": 0.1,
        "ms": 1,
        "request": request | {"body": body},
        "response": {"status": 201, "headers": {}, "body": stored} | response,
        "volatile": [],
    }
    return {"topic": "99-made-up", "about": "", "notes": [], "steps": [step]}


def test_a_difference_is_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The runner prints where a body differs, and writes a row for each step."""
    good, bad = _recording(), _recording()
    bad["steps"][0]["response"]["body"]["data"] = {"k": "2"}
    for name, raw in (("good", good), ("bad", bad)):
        (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    out = tmp_path / "rows.json"
    assert main([str(tmp_path / "good.json")]) == 0
    assert main([str(tmp_path / "bad.json"), "--json", str(out)]) == 1
    (row,) = json.loads(out.read_text())
    assert (row["passed"], row["name"]) == (False, "create one")
    assert row["difference"] == '/data/k: expected "2", got "1"'
    assert "1 of 1 steps reproduced" in capsys.readouterr().out


def test_a_step_of_another_shape_has_failed(tmp_path: Path) -> None:
    """It is a row that says why, and the steps beside it are played."""
    raw = _recording()
    odd: list[Any] = [
        {"name": "no request"},
        {"name": "path is a list", "request": {"method": "GET", "path": []}, "response": {"status": 200}},
        {"name": "event of text", "request": {"method": "GET", "path": "/api/v1/pods"}, "events": ["ADDED"]},
        {"name": "time of text", "t": "soon", "request": {"method": "GET", "path": "/api/v1/pods"}},
        {
            "name": "status of text",
            "request": {"method": "GET", "path": "/api/v1/pods"},
            "response": {"status": "good"},
        },
        "a text",
        None,
    ]
    raw["steps"] += odd
    (tmp_path / "odd.json").write_text(json.dumps(raw))
    out = tmp_path / "rows.json"
    assert main([str(tmp_path / "odd.json"), "--json", str(out)]) == 1
    rows = json.loads(out.read_text())
    assert [row["passed"] for row in rows] == [True] + [False] * len(odd)
    assert all(row["difference"] for row in rows[1:])


def test_a_stopped_process_does_nothing_until_it_goes_on() -> None:
    """While the controller-manager stands still a Job has no pods; the recorded signals stop it and let it go on."""
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job-1", "namespace": "ns-1"},
        "spec": {
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}},
        },
    }
    raw = _recording()
    path = "/apis/batch/v1/namespaces/ns-1/jobs"
    raw["steps"] = [
        _step("POST", path, 1.0, 201, job),
        *(_step("GET", f"{path}/job-1", t_s, 200) for t_s in (5.0, 9.0)),
    ]
    raw["actions"] = [
        {"t": 0.5, "process": "kube-controller-manager", "what": "SIGSTOP"},
        {"t": 6.0, "process": "kube-controller-manager", "what": "SIGCONT"},
    ]
    player = Player(parse(raw), [])
    seen: list[Any] = []
    player.server.store.listen("pods", lambda event: seen.append(player.server.timeline.now_us - player.start_us))
    player.play()
    assert seen
    assert 6.0 <= seen[0] / 1e6 < 6.1


def _step(method: str, path: str, t_s: float, status: int, body: Any = None) -> dict[str, Any]:
    request = {"method": method, "path": path, "query": {}, "headers": {}, "as": "admin", "body": body}
    return {"name": f"{method} {t_s}", "t": t_s, "request": request, "response": {"status": status, "headers": {}}}


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    """With exit status 2."""
    (tmp_path / "x.json").write_text("[]")
    assert main([str(tmp_path / "x.json")]) == 2


def test_renaming_changes_names_uids_and_times_everywhere_alike() -> None:
    """The same name stands in the path, the body and the answer."""
    raw = _recording()
    raw["steps"][0]["response"]["body"]["metadata"]["uid"] = "2362aee1-6d3e-43d3-82d4-1a8530db8794"
    raw["steps"][0]["response"]["body"]["metadata"]["creationTimestamp"] = "2026-11-23T00:00:00Z"
    renamed, world = rename(raw, "name: map-1\n", 7)
    (step,) = parse(renamed).steps
    new = step.body["metadata"]
    assert new["name"] != "map-1"
    assert step.request["body"]["metadata"]["name"] == new["name"]
    assert world == f"name: {new['name']}\n"
    assert new["namespace"] in step.request["path"]
    assert new["uid"] != "2362aee1-6d3e-43d3-82d4-1a8530db8794"
    assert new["creationTimestamp"] != "2026-11-23T00:00:00Z"


def test_the_server_reads_no_recording() -> None:
    """Its code names neither the shared data nor the recordings, nor a topic of them."""
    forbidden = re.compile(r"\brecordings/|shared/|AUTOPILOT_SHARED_DATA|\brec-[a-z]+\b")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in sorted((ROOT / "apiserver").rglob("*.py"))
        if (match := forbidden.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []
