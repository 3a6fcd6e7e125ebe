"""`python -m tests.kube.replay FILE... [--json OUT] [--rename SEED]`: play recorded exchanges on the API server.

One line for each step that differs, then the share of each topic. Exit status 0 when every step is reproduced or listed
in differences.toml, 1 otherwise, 2 when a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from autopilot.core.model.errors import InputError
from tests.kube.replay.play import Player, Row
from tests.kube.replay.recording import parse, read_raw
from tests.kube.replay.rename import rename
from tests.kube.replay.worlds import world_text


def player(path: Path, seed: int | None = None) -> Player:
    """What plays a file, renamed by a seed if one is given. Raises InputError."""
    raw = read_raw(path)
    try:
        world = world_text(raw["topic"])
        if seed is not None:
            raw, world = rename(raw, world, seed)
        return Player(parse(raw), yaml.safe_load(world) or [])
    except (KeyError, TypeError) as error:
        raise InputError(str(path), f"is no recording: {error!r}", "name a file of recorded steps") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the files that the command line names; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kube.replay", description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="recorded topics")
    parser.add_argument(
        "--json", type=Path, metavar="OUT", help="write a row for each step: topic, name, passed, difference"
    )
    parser.add_argument("--rename", type=int, metavar="SEED", help="rename objects, namespaces, uids and times first")
    parser.add_argument("--hidden", action="store_true", help="show what was inferred between the steps, and failed")
    given = parser.parse_args(arguments)
    try:
        players = [player(path, given.rename) for path in given.files]
    except InputError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    rows: list[Row] = []
    for each in players:
        played = each.play()
        rows += played
        for line in each.hidden_failures if given.hidden else ():
            print(f"  hidden: {line}")  # noqa: T201
        for row in played:
            if not row.passed:
                print(f"{row.topic}: {row.name}: {row.difference}")  # noqa: T201
        passed = sum(row.passed for row in played)
        print(f"{each.recording.topic}: {passed} of {len(played)} steps reproduced")  # noqa: T201
    if given.json:
        given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
