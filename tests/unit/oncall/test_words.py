"""What the commands and the API say about alerts."""

from __future__ import annotations

import pytest

from autopilot.http.routers.alerts import in_words
from autopilot.operate.oncall_client import print_state

PHOTO = {
    "about": {"tenant": "photo"},
    "stage": "proposed",
    "reason": "approve or reject the recommendation",
    "proposals": ["r"],
}


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (1_382_400.0, "GPU-s", "384 GPU-h"),
        (2.5, "GPU-h", "2.5 GPU-h"),
        (5400.0, "s", "1 h 30 min"),
        (12_345.0, "GPUs", "12,345 GPUs"),
        (0.12345, "", "0.123"),
        (float("nan"), "GPUs", "-"),
    ],
)
def test_an_answer_of_a_runbook_is_written_as_everywhere(value: float, unit: str, words: str) -> None:
    """Three significant digits, GPU time in hours; unknown is a dash."""
    assert in_words(value, unit) == words


def test_the_state_of_another_alert_is_not_shown_as_that_of_the_one_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says that none about the object fires, which others do, and approves nothing of those."""
    print_state([PHOTO], {"tenant": "art"}, approvable=frozenset({"r"}))
    said = capsys.readouterr().out
    assert "none about tenant=art fires" in said
    assert "tenant=photo  proposed" in said
    assert "--label" in said
    assert "autopilot approve" not in said
    print_state([PHOTO], {"tenant": "photo"}, approvable=frozenset({"r"}))
    said = capsys.readouterr().out
    assert "autopilot approve r" in said
    assert "--label" not in said
