"""Defaults: what is assumed of a silent job, and that it is counted."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from autopilot.core.model.errors import InputError
from simulator.traces.defaults import declared_limits_s, load_defaults, usual_limit_s
from simulator.traces.job_trace import JobTrace
from simulator.traces.jobs import jobs_from_frame


def jobs_of(*kinds: str, **columns: list[object]) -> JobTrace:
    """One job of eight GPUs a kind, with these columns."""
    rows = len(kinds)
    base = {
        "job_id": [f"j{i}" for i in range(rows)],
        "tenant": ["t"] * rows,
        "submit_s": range(rows),
        "duration_s": [600] * rows,
        "gpus": [8] * rows,
        "kind": kinds,
    }
    return jobs_from_frame(pd.DataFrame(base | columns), Path("x.csv"))


def defaults_file(folder: Path, text: str) -> Path:
    """A defaults file with this text."""
    path = folder / "defaults.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_shipped_defaults_tell_services_from_training() -> None:
    """Services are protected and never preemptible, notebooks tolerate waiting, the rest is batch."""
    jobs = load_defaults().fill(jobs_of("inference_HN", "LS", "llsub:interactive", "train", ""))
    assert jobs.slo_class.tolist() == [
        "latency-critical",
        "latency-critical",
        "interactive",
        "batch",
        "batch",
    ]
    assert jobs.preemptible.tolist() == [0, 0, 0, 1, 1]
    assert np.isnan(jobs.checkpoint_interval_s).tolist() == [True, True, True, False, False]
    assert jobs.checkpoint_gib[3] == pytest.approx(8 * 5.6)
    assert np.isnan(jobs.limit_s).all(), "a limit would tell a policy the true duration"
    assert jobs.assumed["slo_class"] == 5
    assert jobs.assumed["checkpoint_interval_s"] == 2


def test_defaults_never_overwrite_what_the_file_says() -> None:
    """A value in the file stays, and only the others are counted as assumed."""
    jobs = load_defaults().fill(jobs_of("train", "train", slo_class=["interactive", None], restart_s=[None, 5]))
    assert jobs.slo_class.tolist() == ["interactive", "batch"]
    assert jobs.restart_s.tolist() == [30, 5]
    assert (jobs.assumed["slo_class"], jobs.assumed["restart_s"]) == (1, 1)


def test_the_first_matching_pattern_holds(tmp_path: Path) -> None:
    """Patterns are tried in order, without regard to case; a kind that none matches stays unknown."""
    text = "kinds:\n- {kind: 'tra*', priority: 7, limit_factor: 2}\n- {kind: TRAIN, priority: 1}\n"
    jobs = load_defaults(defaults_file(tmp_path, text)).fill(jobs_of("Train", "eval"))
    assert jobs.priority.tolist() == [7, -1]
    assert jobs.limit_s[0] == 3600
    assert jobs.slo_class.tolist() == ["", ""]
    assert dict(jobs.assumed) == {"priority": 1, "limit_s": 1}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["is empty"]),
        ("- 1\n", ["not a mapping"]),
        ("kinds: []\n", ["kinds", "at least one"]),
        ("kinds: 3\n", ["kinds"]),
        ("kinds: [3]\n", ["kinds[0]", "3"]),
        ("kinds: [{slo_class: batch}]\n", ["kinds[0].kind", "missing"]),
        (
            "kinds: [{kind: a, slo_class: gold}]\n",
            ["kinds[0].slo_class", "'gold'", "latency-critical | interactive"],
        ),
        ("kinds: [{kind: a, preemptible: 1}]\n", ["kinds[0].preemptible", "true or false"]),
        ("kinds: [{kind: a, checkpoint_interval_s: 0}]\n", ["kinds[0].checkpoint_interval_s", "from 1"]),
        ("kinds: [{kind: a, restart_s: .nan}]\n", ["kinds[0].restart_s", "nan"]),
        ("kinds: [{kind: a, restart: 3}]\n", ["kinds[0].restart", "no such field"]),
        ("schema: other/1\nkinds: [{kind: a}]\n", ["schema", "other/1"]),
        ("kind: []\n", ["kind", "no such field"]),
        ("kinds: [", ["YAML"]),
    ],
)
def test_a_mistake_in_a_defaults_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    """File, entry, field, value and what is allowed stand in one message."""
    path = defaults_file(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_defaults(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_an_absent_defaults_file_is_named(tmp_path: Path) -> None:
    """A path that does not exist is one message."""
    with pytest.raises(InputError, match=r"absent\.yaml"):
        load_defaults(tmp_path / "absent.yaml")


def test_limits_are_the_usual_ones() -> None:
    """A wish is rounded up to 1 h, 4 h, 12 h, 24 h, 3 d, 7 d or 30 d, and never cut below itself."""
    wanted = np.array([1, 3600, 3601, 43_201, 86_401, 259_201, 604_801, 3e6])
    assert usual_limit_s(wanted).tolist() == [3600, 3600, 14_400, 86_400, 259_200, 604_800, 2_592_000, 3e6]
    duration_s = np.full(1000, 3000.0)
    limits_s = declared_limits_s(duration_s, np.random.default_rng(1))
    assert set(limits_s.tolist()) == {3600, 14_400, 43_200}
    assert (limits_s == declared_limits_s(duration_s, np.random.default_rng(1))).all()
