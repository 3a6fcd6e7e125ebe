from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from autopilot.core.model.errors import InputError
from autopilot.core.model.policy import GuaranteeRule, Mode, Policy, RuleSetName, check_policy
from autopilot.core.model.units import parse_duration_s
from autopilot.policies.dialect import read_yaml, write_yaml
from autopilot.policies.policy_tree import bare, duration_text, hints_of, policy_fields
from autopilot.settings import (
    load_policy,
    parse_policy,
    policy_diff,
    policy_digest,
    policy_names,
    policy_to_yaml,
    shipped_policy,
)

ROOT = Path(__file__).resolve().parents[3]
FIELDS = policy_fields()
PATHS = {field.path for field in FIELDS}


SHIPPED = "approve, autopilot, observe, recommend"


def written(folder: Path, text: str | bytes, name: str = "mine.yaml") -> Path:
    """A file of that text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(text: str | bytes) -> str:
    """The message with which a text is refused."""
    with pytest.raises(InputError) as caught:
        parse_policy(text, "mine.yaml")
    message = str(caught.value)
    assert message.startswith("mine.yaml")
    return message


# --- drawing any legal policy from the tree -------------------------------------------------------


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Draws a legal value of an annotation, its limits included."""
    kind = bare(hint)
    limits = {
        k: v
        for part in getattr(hint, "__metadata__", ())
        for k in ("ge", "le")
        if (v := getattr(part, k, None)) is not None
    }
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(limits.get("ge"), limits.get("le"))
    if kind is float:
        low, high = limits.get("ge", 1e-6), limits.get("le", 999.0)
        whole = st.integers(math.ceil(low), math.floor(high)).map(float) if high >= 1 else st.nothing()
        return st.floats(low, high) | whole
    if kind is str:
        return st.text(max_size=20)
    items = values(kind.__args__[1 if kind.__origin__ is dict else 0])
    if kind.__origin__ is dict:
        return st.dictionaries(st.text(max_size=20) | st.sampled_from(["<<", "off", "a_s", "1"]), items)
    return st.lists(items, max_size=4).map(tuple)


HOURS = st.sampled_from(["", "Mon-Fri 08:00-18:00 +01:00", "Sun 00:00-24:00"])


@st.composite
def policies(draw: st.DrawFn, node: Any = None) -> Policy:
    """Some fields of the tree drawn anew, the others as they are."""
    top = node is None
    node = Policy() if top else node
    changed = {}
    cls: type = type(node)
    for name, hint in hints_of(cls).items():
        value = getattr(node, name)
        if is_dataclass(value):
            changed[name] = draw(policies(value))
        elif draw(st.integers(0, 2)) == 0:
            changed[name] = draw(HOURS if name.endswith("_hours") else values(hint))
    policy: Policy = replace(node, **changed)
    if top:
        able = policy.preemption.time_sharing and policy.rules is RuleSetName.HIERARCHICAL_FAIR_SHARE
        if not (able and policy.tenancy.time_sharing):  # fields that need each other
            apart = replace(policy.tenancy, time_sharing=False, guarantee=GuaranteeRule.STRICT)
            policy = replace(policy, tenancy=apart)
        try:
            check_policy(policy)
        except InputError:
            assume(False)
    return policy


# --- shipped policies and names -------------------------------------------------------------------


def test_the_default_base_is_what_the_tree_says() -> None:
    """`recommend` is the tree's defaults under its own name."""
    assert shipped_policy("recommend") == replace(Policy(), name="recommend")


def test_every_shipped_policy_is_named_as_its_file_and_holds_together() -> None:
    """Each name of the table loads, carries that name and passes the checks between fields."""
    assert {"autopilot", "recommend"} <= set(policy_names())
    for name in policy_names():
        policy = load_policy(name)
        assert policy.name == name
        check_policy(policy)


@pytest.mark.parametrize("name", ["autopilt", "nosuch", "", "x" * 5000, "a\0b"])
def test_an_unknown_name_is_refused_with_the_table(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is neither a shipped name nor a file is refused with the names that there are."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"one of {SHIPPED}") as caught:
        load_policy(name)
    assert ("did you mean autopilot?" in str(caught.value)) == (name == "autopilt")


def test_a_shipped_name_wins_over_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The name `autopilot` means the shipped policy wherever one stands."""
    (tmp_path / "autopilot").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_policy("autopilot") is shipped_policy("autopilot")


# --- reading files --------------------------------------------------------------------------------


def test_a_file_changes_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    """Gaps are filled from the defaults, the name is the file's, durations are read as people write them."""
    text = "budget: {per_node: 7}\nexpert: {budget.window_s: 1h30m}\nhysteresis:\n  dwell_s: 90\n"
    path = written(tmp_path, text, "night.yaml")
    policy, usual = load_policy(path), Policy()
    assert policy == replace(
        usual,
        name="night",
        budget=replace(usual.budget, window_s=5400.0, per_node=7),
        hysteresis=replace(usual.hysteresis, dwell_s=90.0),
    )
    assert isinstance(policy.hysteresis.dwell_s, float), "a whole number in a float field becomes a float"
    assert load_policy(str(path)) == policy


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budget: {window_s: 2h}", "budget.window_s: an expert field; write it as `expert: {budget.window_s: ...}`"),
        ("expert: {budget.per_node: 3}", "expert.budget.per_node: no expert field; write budget.per_node at its place"),
        ("expert: {budget.windows_s: 2h}", "expert.budget.windows_s: no such field, did you mean budget.window_s?"),
        ("expert: {budget.window_s: 1s}", "budget.window_s: "),
        ("expert: 3", "expert: 3 is not allowed; it takes a mapping of paths to values"),
        ("budget: 3\nexpert: {budget.window_s: 2h}", "budget: 3 is not allowed"),
        ("clock: {max_skew_s: 9}", "clock.max_skew_s: no field any more: it is always 5s; remove it"),
        ("expert: {clock.max_skew_s: 9}", "expert.clock.max_skew_s: no field any more: it is always 5s; remove it"),
    ],
)
def test_expert_fields_stand_under_expert_and_constants_nowhere(text: str, said: str) -> None:
    """Each misplaced field gets one message with its place."""
    message = refusal(text)
    assert said in message
    assert "\n" not in message


def test_a_base_fills_the_gaps() -> None:
    """`base: autopilot` leaves the modes that are not named at auto, and never lends its name."""
    policy = parse_policy("base: autopilot\nmodes: {backfill: off}", "x.yaml", "x")
    assert policy.modes == replace(shipped_policy("autopilot").modes, backfill=Mode.OFF)
    assert policy.name == "x"


def test_a_kubernetes_object_is_read_by_its_spec() -> None:
    """The object's name is the policy's; its spec is the bare tree, base included."""
    head = "apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nmetadata: {name: prod, labels: {a: b}}\n"
    tree = "base: autopilot\nhorizon_s: 2d"
    both = "".join(f"  {line}\n" for line in tree.splitlines())
    found = parse_policy(f"{head}spec:\n{both}status: {{}}\n", "object.yaml")
    assert found == parse_policy(tree, "bare.yaml", "prod")
    assert (found.name, found.horizon_s) == ("prod", 172_800.0)


@pytest.mark.parametrize("text", ["{}", "modes:\n", "budget:\n  # per_node: 1\n", "\ufeffhorizon_s: 1d\n"])
def test_a_section_without_lines_changes_nothing(text: str) -> None:
    """An empty mapping, a section commented out and a byte order mark are no mistakes."""
    assert parse_policy(text.encode(), "x.yaml", "default") == Policy()


@pytest.mark.parametrize("text", ["off", "'off'", '"off"'])
def test_the_mode_off_is_a_word_and_no_truth_value(text: str) -> None:
    """`off` is the mode, quoted or not."""
    assert parse_policy(f"modes: {{backfill: {text}}}", "x").modes.backfill is Mode.OFF


BAD_VALUES = [
    ("reservation: {level: 1.5}", ["reservation.level: 1.5", "a number from 0.05 to 0.99"]),
    ("reservation: {level: .nan}", ["reservation.level: NaN", "from 0.05 to 0.99"]),
    ("horizon_s: .inf", ["horizon_s: Infinity", "a duration from 1m to 30d"]),
    ("horizon_s: 90x", ['horizon_s: "90x"', "15m", "a duration from 1m to 30d"]),
    ("horizon_s: -5", ["horizon_s: -5", "from 1m"]),
    ("horizon_s: 1s", ["horizon_s: ", "from 1m"]),
    ("horizon_s: true", ["horizon_s: true", "a duration"]),
    ("horizon_s: nan", ['horizon_s: "nan"', "a duration"]),
    (f"horizon_s: {'9' * 400}", ["horizon_s: 999", "..."]),
    ("budget: {per_node: 2.5}", ["budget.per_node: 2.5", "a whole number"]),
    ("budget: {per_node: '2'}", ['budget.per_node: "2"', "a whole number"]),
    ("budget: {per_node:}", ["budget.per_node: null", "a whole number"]),
    ("budget: {per_node: -1}", ["budget.per_node: -1", "from 0"]),
    ("budget: [1]", ["budget: [1]", "a mapping with the fields window_s"]),
    ("backfill: {evict_when_due: yes}", ['backfill.evict_when_due: "yes"', "true or false"]),
    ("modes: {backfill: aut}", ['modes.backfill: "aut"', "did you mean auto?", "off, observe, recommend"]),
    ("modes: {backfill: true}", ["modes.backfill: true", "off, observe, recommend"]),
    ("protection: {classes: batch}", ['protection.classes: "batch"', "a list, each item one of"]),
    ("protection: {classes: [a, 3]}", ["protection.classes[1]: 3", "one of latency-critical"]),
    ("price_weight: {H100: cheap}", ['price_weight.H100: "cheap"', "a number"]),
    ("price_weight: {H100: .nan}", ["price_weight.H100: NaN", "a number"]),
    ("price_weight: {H100: 0}", ["price_weight.H100", "above 0"]),
    ("name: 7", ["name: 7", "a text"]),
    ("reservaton: {depth: 1}", ["reservaton: no such field", "did you mean reservation?"]),
    ("reservation: {dept: 1}", ["reservation.dept: no such field", "did you mean depth?"]),
    ("bse: auto", ["bse: no such field", "did you mean base?"]),
    ("per_node: 1", ["per_node: no such field", "did you mean budget.per_node?"]),
    ("reservation: {qqqq: 1}", ["reservation.qqqq: no such field", "reservation has depth"]),
    ("'a\\nb': 1", ["no such field"]),
    (
        "base: autopilt",
        ['base: "autopilt"', "did you mean autopilot?", SHIPPED],
    ),
    ("base: [x]", ["base: ", SHIPPED]),
    ("base:", ["base: null", SHIPPED]),
    ("hysteresis: {dwell_s: 1h}\nhorizon_s: 10m", ["hysteresis.dwell_s", "horizon_s"]),
    ("budget: {concurrent: 5, per_cluster: 4}", ["budget.concurrent: 5", "budget.per_cluster"]),
]


@pytest.mark.parametrize(("text", "parts"), BAD_VALUES, ids=[text[:40] for text, _ in BAD_VALUES])
def test_a_field_that_cannot_be_used_is_refused_with_path_value_and_what_is_allowed(
    text: str, parts: list[str]
) -> None:
    """One message names the file, the field's path, its value and what it takes."""
    message = refusal(text)
    for part in parts:
        assert part in message
    assert len(message) < 500


def test_all_problems_are_told_at_once() -> None:
    """One message lists all three errors of a file."""
    lines = refusal("horizon_s: 1x\nbudget: {per_node: a, nodes: 1}").splitlines()
    assert lines[0] == "mine.yaml: 3 invalid fields"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "horizon_s",
        "budget.nodes",
        "budget.per_node",
    ]


BAD_FILES = [
    ("", "is empty"),
    ("# only a comment\n", "is empty"),
    ("- a\n- b\n", "must be a mapping"),
    ("horizon_s", "must be a mapping"),
    ("horizon_s: 1d\nhorizon_s: 2d\n", "line 2, column 1: invalid YAML: the key 'horizon_s' occurs twice"),
    ("budget: {per_node: 1, per_node: 1}", "the key 'per_node' occurs twice"),
    ("budget: &a {per_node: 1}\nlimits: *a\n", "an alias"),
    ("a: &x {b: *x}", "an alias"),
    ("budget: {per_node: 1", "invalid YAML"),
    ("--- {}\n--- {}\n", "invalid YAML"),
    ("7: x", "the key 7 is no text"),
    ("{[1]: x}", "is no text"),
    ("name: !!python/object/apply:os.system [ls]", "invalid YAML"),
    ("name: !!binary aGk=", "invalid YAML"),
    ("name: \x07", "invalid YAML"),
    ('name: "\\ud800"', "half a character"),
    ("[" * 100_000, "nested too deep"),
    (b"\xff\xfe\x00", "not UTF-8"),
    ("budget: {per_node: " + "9" * 5000 + "}", "invalid YAML"),
    ("kind: AutopilotPolicy\nspec: {}", "apiVersion: null is not allowed; it must be gpu-autopilot.io/v1alpha1"),
    ("apiVersion: gpu-autopilot.io/v1\nkind: AutopilotPolicy", 'apiVersion: "gpu-autopilot.io/v1"'),
    ("apiVersion: gpu-autopilot.io/v1alpha1\nkind: Pod", 'kind: "Pod" is not allowed'),
    ("apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nspec: {}", "metadata.name: null"),
    ("apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nmetadata: {name: a}", "spec: null"),
    ("apiVersion: gpu-autopilot.io/v1alpha1\nkind: AutopilotPolicy\nbudget: {}", "budget: no such field"),
]


@pytest.mark.parametrize(("text", "part"), BAD_FILES, ids=[str(text[:30]) for text, _ in BAD_FILES])
def test_a_file_that_is_no_policy_is_refused_in_one_message(text: str | bytes, part: str) -> None:
    """Empty, broken, doubled, hostile or another kind of object: one InputError that says which."""
    message = refusal(text)
    assert part in message
    assert len(message) < 500


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a folder, or far too large: the path stands in the message."""
    large = written(tmp_path, b"#" * (2 << 20), "large.yaml")
    for path, part in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "directory"), (large, "1 MiB")):
        with pytest.raises(InputError, match=part) as caught:
            load_policy(path)
        assert str(path) in str(caught.value)


# --- writing --------------------------------------------------------------------------------------


@given(policies(), st.sampled_from([None, *policy_names()]))
def test_a_policy_survives_writing_and_reading(policy: Policy, against: str | None) -> None:
    """Any legal policy, written whole or as its difference from a shipped one, is read back as an equal one."""
    text = policy_to_yaml(policy, against)
    found = parse_policy(text, "round trip")
    assert found == policy
    assert policy_digest(found) == policy_digest(policy)
    assert yaml.safe_load(text).keys() <= {"base", "expert"} | hints_of(Policy).keys(), "other readers take it too"


@given(st.floats(0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**9).map(float))
def test_a_duration_is_written_without_loss(value_s: float) -> None:
    """The text of a duration is read back as the same number of seconds."""
    assert parse_duration_s(duration_text(value_s)) == value_s


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    )
)
def test_what_is_written_as_yaml_is_read_back(value: Any) -> None:
    """Texts that look like numbers, truth values or dates come back as texts."""
    assert read_yaml(write_yaml({"value": value}), "x") == {"value": value}


def test_durations_are_written_as_people_write_them() -> None:
    """A whole file shows `5m`; one against its base shows only what differs."""
    policy = replace(Policy(), name="mine", hysteresis=replace(Policy().hysteresis, dwell_s=5400.0))
    assert "dwell_s: 1h30m" in policy_to_yaml(policy)
    assert yaml.safe_load(policy_to_yaml(policy, "recommend")) == {
        "name": "mine",
        "base": "recommend",
        "hysteresis": {"dwell_s": "1h30m"},
    }


def test_a_difference_names_path_and_both_values() -> None:
    """The difference of two policies reads as a policy file does."""
    one = Policy()
    two = replace(
        one,
        horizon_s=7200.0,
        modes=replace(one.modes, backfill=Mode.OFF),
        price_weight={"H200": 1.5, "A100": 1.0},
        protection=replace(one.protection, classes=()),
    )
    assert set(policy_diff(one, two)) == {
        ("horizon_s", "1d", "2h"),
        ("modes.backfill", "recommend", "off"),
        ("price_weight", "{}", "{A100: 1, H200: 1.5}"),
        ("protection.classes", "[latency-critical]", "[]"),
    }


def changed(node: Any, steps: list[str], value: Any) -> Any:
    """The same tree with another value at one path."""
    first, *rest = steps
    return replace(node, **{first: changed(getattr(node, first), rest, value) if rest else value})


@given(policies(), st.data())
def test_a_difference_is_empty_only_between_equal_policies(one: Policy, data: st.DataObject) -> None:
    """Equal policies have no difference and one digest. Others have both, and the difference names what was changed."""
    two, paths = one, set()
    for field in data.draw(st.lists(st.sampled_from(FIELDS), max_size=3)):
        drawn = data.draw(HOURS if field.path.endswith("_hours") else values(field.hint))
        two = changed(two, field.path.split("."), drawn)
        paths.add(field.path)
    assert not policy_diff(one, one)
    assert (not policy_diff(one, two)) == (one == two) == (policy_digest(one) == policy_digest(two))
    assert {path for path, _, _ in policy_diff(one, two)} <= paths
    assert {path for path, _, _ in policy_diff(one, Policy())} <= PATHS


# --- weight ---------------------------------------------------------------------------------------


def test_settings_load_no_heavy_library() -> None:
    """Importing settings and listing the names load no numpy, pydantic, yaml or msgspec."""
    script = (
        "import sys, autopilot.settings as s; s.policy_names(); "
        "sys.exit(str({'numpy', 'pydantic', 'yaml', 'msgspec'} & set(sys.modules) or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
