"""The table of signals (docs/signals.md) has all that is read, and nothing else."""

from __future__ import annotations

import re
from functools import cache

import pytest

from autopilot.contract.tree import PREFIX
from scripts import generate_signals_reference
from scripts.signal_reads import NAME, Reads, read_sources
from scripts.signal_table import Table, differences, load, own_names, unmade
from tests.tidy.tree import name_of, python_files

READ = '''"""A module that reads an object."""

from collectors.kubernetes.wire import condition, is_true

KEYS = ("example.com/one", "plain-two")
STATES = {"Broken": 1.0}


def read(node, pods, keys=KEYS):
    for key in keys:
        node.metadata.label(key)
    found = [value for key in KEYS if (value := node.metadata.note(key))]
    return found, PLANTED, first(pods, "plain-three")


def first(pods, name):
    return next((each.label(name) for each in pods), "")
'''
QUERY = '''"""A module that asks a Prometheus."""

SUFFIX = "_watts"


def query(site):
    return PLANTED
'''


@cache
def table() -> Table:
    """The table of the checkout."""
    return load()


def test_every_signal_that_is_read_has_a_row_and_every_row_is_read() -> None:
    """If not: add the row to scripts/signals.yaml, with who writes it; look it up in the writer's source."""
    assert list(differences(table(), generate_signals_reference.reads())) == []


def test_the_tests_make_every_signal_as_its_writer_writes_it() -> None:
    """The file in the last column has the name."""
    assert list(unmade(table())) == []


def test_a_page_tells_what_each_name_of_ours_means() -> None:
    """What no page tells is not written."""
    assert [name for name, page in own_names(table(), generate_signals_reference.reads()).items() if not page] == []


def test_the_page_is_that_of_the_table() -> None:
    """If not: python scripts/generate_signals_reference.py."""
    assert generate_signals_reference.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("planted", "kind", "name"),
    [
        ('node.metadata.label("planted")', "name", "planted"),
        ('node.metadata.label("example.org/planted")', "name", "example.org/planted"),
        ('node["metadata"]["labels"].get("planted", "")', "name", "planted"),
        ('"planted" in (node.metadata.annotations or {})', "name", "planted"),
        ('any(each.key == "planted" for each in node.spec.taints)', "name", "planted"),
        ('is_true(node.status.conditions, "Planted")', "condition", "Planted"),
        ("[each for each in node.status.conditions if each.type in STATES]", "condition", "Broken"),
        ('(node.status.conditions[0].type, "True") in {("Planted", "True")}', "condition", "Planted"),
        ('("Planted=False",)', "condition", "Planted"),
        ('condition(node.status.conditions, "Ready").reason == "Planted"', "reason", "Planted"),
        ('[key for key in node.metadata.labels if key.startswith("planted-")]', "name", "planted-"),
    ],
)  # fmt: skip
def test_a_planted_read_is_found(planted: str, kind: str, name: str) -> None:
    """Through constants, tables that are looped over, defaults and arguments, too."""
    source = {"collectors/kubernetes/planted.py": READ.replace("PLANTED", planted)}
    said = {each.partition(": ")[2] for each in differences(table(), Reads(source).all())}
    planted_too = {("name", each) for each in ("example.com/one", "plain-two", "plain-three")}
    assert {f"{kind} {name} is read and has no row" for kind, name in {(kind, name), *planted_too}} <= said


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        ('"planted_energy_total"', "planted_energy_total"),
        ('"max by (node) (planted{mode=\\"x\\"})"', "planted"),
        ('f"rate(planted{{{site.matchers}}}[5m])"', "planted"),
        ('"DCGM_FI_DEV_PLANTED"', "DCGM_FI_DEV_PLANTED"),
    ],
)
def test_a_planted_metric_is_found(planted: str, name: str) -> None:
    """By its form, or by the matchers after it."""
    source = {"collectors/planted.py": QUERY.replace("PLANTED", planted)}
    said = [each.partition(": ")[2] for each in differences(table(), Reads(source).all())]
    assert f"metric {name} is read and has no row" in said


def test_a_read_whose_names_are_not_known_is_found() -> None:
    """The table has to say who chooses them."""
    source = {
        "collectors/kubernetes/planted.py": "def read(node, settings):\n    return node.metadata.label(settings.key)\n"
    }
    said = [each for each in differences(table(), Reads(source).all()) if "cannot be followed" in each]
    assert said == [
        "collectors/kubernetes/planted.py:2: the label settings.key is read, and its names cannot be followed"
    ]


def test_nothing_else_of_the_product_reads_an_object() -> None:
    """Names of objects are looked up by the readers alone; add a new one to `READERS` in scripts/signal_reads.py."""
    known, quoted = read_sources(), re.compile(f"[\"']{NAME.pattern}")
    texts = {name_of(path): path.read_text("utf-8") for path in python_files("autopilot", "models")}
    others = {path: text for path, text in texts.items() if path not in known and quoted.search(text)}
    reads = Reads(others).all()
    assert {each.name for each in reads if each.kind != "metric" and "/" in each.name} == {PREFIX}
