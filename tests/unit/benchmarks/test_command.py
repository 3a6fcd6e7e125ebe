"""The documented commands of the benchmarks are understood."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

import pytest

from benchmarks.__main__ import main
from tests.tidy.tree import ROOT

DOCUMENTS = ("README.md", "docs/benchmarks.md", "benchmarks/approvals.py")
COMMAND = re.compile(r"python -m benchmarks ([a-z][^`#\n.]*)")


class UnderstoodError(Exception):
    """The benchmark read its arguments."""


def _documented() -> list[str]:
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS)
    return sorted({found.strip() for found in COMMAND.findall(text) if "-" in found})


def _stop_after_its_own_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = argparse.ArgumentParser.parse_args
    parsed: list[argparse.Namespace] = []

    def once_more(self: argparse.ArgumentParser, *given: Any) -> argparse.Namespace:
        parsed.append(parse(self, *given))
        if len(parsed) == 2:
            raise UnderstoodError
        return parsed[-1]

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", once_more)


@pytest.mark.parametrize("command", [*_documented(), "slurm", "tick showback --quick"])
def test_a_documented_command_reaches_its_benchmark(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark accepts each argument that the document gives it."""
    _stop_after_its_own_arguments(monkeypatch)
    with pytest.raises(UnderstoodError):
        main(shlex.split(command))


@pytest.mark.parametrize("command", ["tik", "tick tik", "--workers 2", "tick --none 2"])
def test_a_wrong_command_ends_with_its_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name or an option that no benchmark has ends the command before it computes."""
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
