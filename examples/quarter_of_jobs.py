"""Ten weeks of jobs of two tenants with dates, as a job file: `python examples/quarter_of_jobs.py > jobs.csv`.

Weekends are quiet. `autopilot simulate --jobs jobs.csv` keeps the dates, so its bills have days and months.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)
PEOPLE = (("vision", "ada", 4), ("vision", "bob", 8), ("language", "eve", 4), ("language", "", 2))


def main() -> None:
    """Print the rows."""
    print("job_id,tenant,user,submit,duration_s,gpus")
    for day in range(70):
        at = BEGIN + timedelta(days=day)
        for number, (tenant, user, gpus) in enumerate(PEOPLE[: 2 if at.weekday() >= 5 else 4]):
            submit = at + timedelta(minutes=40 * number)
            print(f"{tenant}-{day}-{number},{tenant},{user},{submit.isoformat()},{5400 + 600 * number},{gpus}")


if __name__ == "__main__":
    main()
