"""The configuration file of NVIDIA's MIG manager: read, and written with further entries."""

from __future__ import annotations

import pytest

from actuators.kubernetes.api import Obj
from actuators.kubernetes.mig_file import BadFileError, Cuts, entries_of, entry_of, layouts_of, with_entries

BALANCED = """version: v1
mig-configs:
  balanced:
    - {device-filter: "0x233010DE", devices: all, mig-enabled: true, mig-devices: {1g.10gb: 2, 3g.40gb: 1}}
    - {device-filter: ["0x20B010DE"], devices: all, mig-enabled: true, mig-devices: {1g.5gb: 2, 3g.20gb: 1}}
  half: [{devices: [0], mig-enabled: true, mig-devices: {7g.80gb: 1}}]
"""


def test_an_entry_with_device_filters_has_one_meaning_for_each() -> None:
    """Which of them counts is seen from what the node offers."""
    found = layouts_of(entries_of(BALANCED), "balanced", 1)
    assert {each[0].shown for each in found} == {"2 x 1g.10gb, 1 x 3g.40gb", "2 x 1g.5gb, 1 x 3g.20gb"}


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("a: [", "x", "is not YAML"),
        ("version: v2", "x", "is not a file of mig-parted"),
        (BALANCED, "other", "no entry 'other'"),
        (BALANCED, "half", "does not state all 2 GPUs"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str, name: str, words: str) -> None:
    """With what is wrong."""
    with pytest.raises(BadFileError, match=words):
        layouts_of(entries_of(text), name, 2)


def test_an_entry_is_read_as_it_was_written() -> None:
    """Equal layouts have one name, and old entries of ours are dropped, never those of people or in use."""
    layout = (Cuts({"1g.10gb": 7}), Cuts(None), Cuts({}), Cuts({"1g.10gb": 7}))
    name, parts = entry_of(layout)
    configs: Obj = {"mine": [], **{f"gpu-autopilot-{number}": [] for number in range(70)}}
    found = entries_of(with_entries(configs, {name: parts}, ["gpu-autopilot-0"]))
    assert layouts_of(found, name, 4) == [layout]
    assert entry_of(layout)[0] == name
    assert {"mine", "gpu-autopilot-0", name, "gpu-autopilot-69"} <= set(found)
    assert len(found) == 67
