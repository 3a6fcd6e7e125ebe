"""What others wrote reaches no terminal, log or table as a command."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import structlog
from rich.console import ConsoleRenderable
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from autopilot.app.commands import run_commands
from autopilot.printable import printable
from autopilot.service.logs import set_up_logs
from autopilot.service.settings import Log, LogFormat
from simulator.traces.table_files import without_formulas
from tests.tidy.tree import ROOT

HOSTILE = "job\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eend\x7f"
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
RAW = re.compile(r"(?<![.\w])print\(|typer\.(echo|secho)\(|click\.(echo|secho)\(|Console\(|sys\.std(out|err)\.write\(")
MAY_WRITE = {
    "autopilot/app/commands/run_commands.py",  # the two consoles
    "autopilot/app/commands/json_out.py",  # JSON has escapes of its own
    "autopilot/app/commands/showback_commands.py",  # figures alone
    "autopilot/cli.py",  # messages, made printable, and the version
    "autopilot/simulated/process.py",  # the message of a process of ours
}


@pytest.mark.parametrize("text", [HOSTILE, *(chr(code) for code in (*range(32), *range(0x7F, 0xA0)))])
def test_no_character_that_acts_is_shown(text: str) -> None:
    """Each becomes a question mark; texts of any language stay as they are."""
    assert not ACTS.search(printable(text))
    assert "\n" not in printable(text)
    assert printable("Zürich, 東京, שלום, 🚀") == "Zürich, 東京, שלום, 🚀"


@pytest.mark.parametrize("unseen", "\u00ad\u034f\u115f\u180e\u3164\uffa0\ufff9\U0001d173\U000e0001\U000e0041")
def test_a_name_with_letters_that_nobody_sees_looks_like_no_other(unseen: str) -> None:
    """They would hide an instruction, or a second name, in one that people read."""
    assert printable(f"team{unseen}") == "team?"


@pytest.mark.parametrize("blank", ["", " ", "\u00a0", "\u3000", "\r", "\n", "\ufeff", "\x00 "])
@pytest.mark.parametrize("start", "=+-@\uff1d\uff0b\uff0d\uff20")
def test_no_cell_is_a_formula_after_blanks_or_in_wide_letters(blank: str, start: str) -> None:
    """Some spreadsheets skip the first and read the second as if they were narrow."""
    (cell,) = without_formulas(pd.DataFrame({"tenant": [f"{blank}{start}1+1"]}))["tenant"]
    assert cell.startswith("'")


def table() -> Table:
    """One cell."""
    made = Table(HOSTILE)
    made.add_row(HOSTILE)
    return made


@pytest.mark.parametrize("shown", [HOSTILE, Text(HOSTILE, "bold"), table(), Markdown(f"# {HOSTILE}\n`{HOSTILE}`")])
def test_whatever_a_command_prints_is_made_printable(
    shown: str | ConsoleRenderable, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both consoles do it, for every kind of content; rows of figures do it for each cell."""
    run_commands.out.print(shown)
    run_commands.err.print(shown)
    run_commands.print_rows([HOSTILE], [[HOSTILE]])
    said = capsys.readouterr()
    assert "end" in said.out
    assert "end" in said.err
    assert not ACTS.search(said.out + said.err)


def test_every_command_prints_by_these_consoles() -> None:
    """A module that writes in another way is named here, with its reason."""
    files = (
        path
        for part in ("app", "operate", "playground", "service")
        for path in (ROOT / "autopilot" / part).rglob("*.py")
    )
    found = {
        str(path.relative_to(ROOT))
        for path in (*files, ROOT / "autopilot/cli.py")
        if RAW.search(path.read_text("utf-8"))
    }
    assert found <= MAY_WRITE, found - MAY_WRITE


@pytest.mark.parametrize("form", list(LogFormat))
def test_a_log_line_has_no_character_that_acts(form: LogFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of our events nor of libraries; one event is one line."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    try:
        set_up_logs(Log(format=form))
        log: Any = structlog.get_logger("test")
        log.info("seen", name=HOSTILE + "\nforged")
        logging.getLogger("library").warning("about %s", HOSTILE)
    finally:
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert not ACTS.search(stream.getvalue())


def test_a_table_for_spreadsheets_has_no_character_that_acts(tmp_path: Path) -> None:
    """Nor a formula that hides behind one."""
    cells = without_formulas(pd.DataFrame({"name": [HOSTILE, "\t=1+1", "=2+2"], "n": [1, 2, 3]}))["name"].tolist()
    assert not any(ACTS.search(cell) or "\t" in cell for cell in cells)
    assert [cell[0] for cell in cells] == ["j", "'", "'"]
    assert json.dumps(cells)
