"""A Prometheus and an Alertmanager beside the playground."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from autopilot.core.model.errors import InputError
from autopilot.playground.monitoring import find_programs, running
from tests.kits.prometheus_kit import answers, until


@pytest.mark.parametrize(
    ("present", "absent"),
    [((), "Prometheus and Alertmanager"), (("prometheus",), "Alertmanager"), (("alertmanager",), "Prometheus")],
)
def test_a_program_that_is_absent_is_named_before_anything_starts(
    present: tuple[str, ...], absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the packages that have it."""
    for name in present:
        (tmp_path / name).write_text("#!/bin/sh\n", "utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=rf"^--alerts: {absent} not found on PATH; install the Debian packages"):
        find_programs()


def test_both_run_with_the_written_settings_until_the_end(tmp_path: Path, require_tool: Callable[[str], str]) -> None:
    """Prometheus and Alertmanager accept them; nothing answers afterwards."""
    for tool in ("prometheus", "prometheus-alertmanager"):
        require_tool(tool)
    around, token = find_programs(), tmp_path / "token"
    token.write_text("secret", "utf-8")
    urls = list(around.settings().values())
    with running(around, api="http://127.0.0.1:1", metrics="127.0.0.1:1", reader=token, sender=token, speed=60.0):
        for url in urls:
            until(lambda url=url: answers(f"{url}/-/ready"), f"{url} is ready")  # type: ignore[misc]
    assert not any(answers(url) for url in urls)
