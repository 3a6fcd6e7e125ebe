"""Record how the models do on the golden set: models/golden/scores.json.

    python scripts/record_golden_scores.py [--check]

With --check it writes nothing, prints what a change of the code made worse, and ends with 1 if there is anything
(`make gate`). A record that moves is a change to be explained in the CHANGELOG.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from autopilot.app.backtests.golden import (  # the checkout first, not an installed copy
    FOLDER,
    GOLDEN_VERSION,
    TOLERANCES,
    golden_document,
    recorded_scores,
    scores_in,
    worse_than,
)
from models.backtest import METRIC_VERSION  # as above


def main() -> None:
    """Measure, then write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded; write nothing")
    check = parser.parse_args().check
    recorded = recorded_scores() if check else {}
    scores = {kind: scores_in(golden_document(kind), kind) for kind in TOLERANCES}
    if check:
        worse = [line for kind in scores for line in worse_than(recorded[kind], scores[kind], kind)]
        for line in worse:
            print(line)
        print("the models do worse on the golden set" if worse else "on the golden set nothing is worse than recorded")
        sys.exit(1 if worse else 0)
    record = {"golden_version": GOLDEN_VERSION, "metric_version": METRIC_VERSION, "scores": scores}
    (FOLDER / "scores.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {FOLDER / 'scores.json'}")


if __name__ == "__main__":
    main()
