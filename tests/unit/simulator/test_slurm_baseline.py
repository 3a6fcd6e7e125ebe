"""The baseline `slurm` in charge of a simulated cluster, and the readers of a site's files."""

from __future__ import annotations

from math import inf
from pathlib import Path

import numpy as np
import pytest

from autopilot.core.model.errors import InputError
from simulator.baselines.slurm import accounts, config, reservations
from simulator.baselines.slurm.config import seconds
from simulator.baselines.slurm.files import read_site
from simulator.baselines.slurm.hostlist import expand
from simulator.baselines.slurm.model import Node
from simulator.baselines.slurm.policy import Slurm
from simulator.baselines.slurm.reservations import Reservation
from simulator.baselines.slurm.site import Site
from simulator.baselines.textbook import fifo
from simulator.outcome.fared import waited_s
from simulator.outcome.results import policy_result
from simulator.running.simulation import Simulated, Simulation
from simulator.world.work import Shape
from tests.kits.cluster_kit import inventory, make_jobs

CONF = """SchedulerType=sched/backfill
SchedulerParameters=bf_interval=60,bf_window=2880,bf_max_job_user=4
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityMaxAge=7-0
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=2:00:00 PriorityTier=3
"""
SHOWN = """Configuration data as of 2026-01-01T00:00:00
SchedulerType           = sched/backfill
SchedulerParameters     = bf_interval=60,bf_window=2880,bf_max_job_user=4
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityMaxAge          = 7-00:00:00

PartitionName=main
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   Default=YES QoS=N/A
   MaxNodes=UNLIMITED MaxTime=02:00:00 MinNodes=0
   Nodes=n[1-4]
   PriorityJobFactor=1 PriorityTier=3 RootOnly=NO
"""


def test_a_site_is_read_from_its_folder(tmp_path: Path) -> None:
    """Settings, accounts and switches; a folder without settings is refused."""
    nodes = tuple(Node(name, 32, ("a100",) * 8) for name in ("n1", "n2"))
    with pytest.raises(InputError, match="write the output of scontrol"):
        read_site(tmp_path, nodes)
    (tmp_path / "config.txt").write_text(SHOWN.replace("n[1-4]", "x[1-4]"), encoding="utf-8")
    (tmp_path / "accounts.txt").write_text("add account a\nadd user u account=a", encoding="utf-8")
    site = read_site(tmp_path, nodes)
    assert site.partition_nodes("main") == 0b11
    assert site.accounts.account_of("u") == "a"


def run(rows: list[tuple[float, float, int]], limits_s: list[float], nodes: int = 2) -> Simulated:
    """A run on nodes of 8 GPUs."""
    jobs = make_jobs(rows)
    jobs.limit_s = limits_s
    simulated = Simulation(inventory(nodes, 8), jobs, lambda _cluster: Slurm()).run()
    assert simulated.found.violations == ()
    return simulated


def test_a_plan_takes_whole_nodes_and_lets_only_short_work_pass() -> None:
    """A gang of two nodes waits for the first end; one GPU is free before that for a job that ends in time."""
    rows = [(0.0, 600.0, 8), (0.0, 600.0, 4), (10.0, 100.0, 16), (20.0, 100.0, 1), (21.0, 100.0, 1)]
    starts = run(rows, [600.0, 600.0, 600.0, 1200.0, 120.0]).cluster.first_start_s
    assert starts[4] < 100.0
    assert 600.0 <= starts[2] < 660.0
    assert starts[3] >= 700.0


def test_work_beyond_its_limit_is_stopped_at_a_check() -> None:
    """Limits are checked every 30 s."""
    cluster = run([(0.0, 1000.0, 1)], [60.0]).cluster
    assert 60.0 < cluster.end_s[0] <= 120.0


def test_what_scontrol_shows_is_read_like_the_file() -> None:
    """slurm.conf, and the output of `scontrol show config` and `show partition`, give the same site."""
    written, shown = config.parse(CONF), config.parse(SHOWN)
    assert written == shown
    assert (written.bf_window_s, written.bf_max_job_user, written.max_age_s) == (172_800.0, 4, 604_800.0)
    assert (written.partitions["main"].tier, written.partitions["main"].max_time_s) == (3, 7200.0)


def test_what_sacctmgr_shows_is_read_like_commands() -> None:
    """Shares and limits of associations, and QOS."""
    written = accounts.parse("add account pb fairshare=4 GrpTRES=gres/gpu=10\nadd user u4 account=pb fairshare=2")
    shown = accounts.parse(
        "Cluster|Account|User|Par Name|Share|GrpTRES\n"
        "c|root|||1|\nc|root|root||1|\nc|pb||root|4|gres/gpu=10\nc|pb|u4||2|\n"
        "Name|Priority|GraceTime|Preempt|MaxTRESPU\nhigh|50|00:01:00|low|gres/gpu=6\n"
    )
    assert written.associations == {key: shown.associations[key] for key in written.associations}
    assert shown.qos["high"].preempts == {"low"}
    assert (shown.qos["high"].grace_s, shown.qos["high"].limits.user) == (60, {"gres/gpu": 6.0})
    with pytest.raises(InputError, match="ParentName"):  # as sacctmgr prints without a format
        accounts.parse("Cluster|Account|User|Partition|Share|Priority\nc|pb|||4|\n")


@pytest.mark.parametrize(
    ("text", "value_s"),
    [
        ("30", 1800),
        ("5:00", 300),
        ("1-00:00:00", 86_400),
        ("2:30:00", 9000),
        ("UNLIMITED", inf),
        ("0 min", 0),
        ("9 sec", 9),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, value_s: float) -> None:
    """A bare number is minutes."""
    assert seconds(text, "here") == value_s


def test_host_lists_are_expanded_and_bad_ones_refused() -> None:
    """Ranges keep their leading zeros."""
    assert expand("a1,n[08-10,12]") == ["a1", "n08", "n09", "n10", "n12"]
    with pytest.raises(InputError, match="write it as in"):
        expand("n[4-1]")


def test_the_partition_of_an_accounting_is_that_of_the_job() -> None:
    """The later job of the higher tier starts first; a partition that the site lacks is the default."""
    text = CONF + "PartitionName=low Nodes=ALL PriorityTier=1\n"

    def site(nodes: tuple[Node, ...]) -> Site:
        return Site(nodes, config.parse(text.replace("n[1-4]", "ALL").replace("multifactor", "basic")))

    jobs = make_jobs([(0.0, 100.0, 8), (1.0, 100.0, 8), (2.0, 100.0, 8), (3.0, 100.0, 8)])
    jobs.partition, jobs.limit_s = ["low", "low", "main,low", "unknown"], [120.0] * 4
    starts = Simulation(inventory(1, 8), jobs, lambda _: Slurm(site)).run().cluster.first_start_s
    assert np.argsort(starts).tolist() == [0, 2, 3, 1]


def test_a_job_that_is_stopped_at_its_limit_waited_at_least_until_its_start() -> None:
    """What it did not run is no time saved: no total wait is negative."""
    simulated = run([(0.0, 5000.0, 8), (0.0, 100.0, 8)], [60.0, 120.0], nodes=1)
    jobs = policy_result(simulated)["jobs"]
    assert jobs["total_wait_s_mean"] == pytest.approx(jobs["queue_wait_s_mean"], abs=1)
    assert waited_s(simulated, 0) == 0


def test_slices_on_a_cluster_that_is_not_cut_hold_up_nobody() -> None:
    """Strict first come, first served would wait for ever behind them."""
    jobs = make_jobs([(0.0, 100.0, 1), (1.0, 100.0, 1)])
    jobs.shape[0] = jobs.shape_code(Shape(gpus=1, per_member=1, min_gpus=1, profile="1g.10gb"))
    simulated = Simulation(inventory(1, 8), jobs, lambda _: fifo(), recuts=False).run()
    assert "mig in the cluster file" in simulated.run.never_fits[0]
    assert simulated.cluster.first_start_s[1] == 1.0


SHOWN_RESERVATIONS = """ReservationName=course of May StartTime=1970-01-01T03:00:00 EndTime=1970-01-01T04:00:00
   Nodes=n1 NodeCnt=1 CoreCnt=64 Features=(null) PartitionName=main Flags=IGNORE_JOBS,SPEC_NODES
   TRES=cpu=64
   Users=(null) Groups=(null) Accounts=t1,-t2 Licenses=(null) State=INACTIVE BurstBuffer=(null) Watts=n/a
   MaxStartDelay=(null)

ReservationName=maint StartTime=9000 EndTime=10800 Duration=00:30:00
   Nodes=x[1-9] NodeCnt=9 CoreCnt=64 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES,ALL_NODES
   Users=root Groups=(null) Accounts=(null)
"""
RECORDED_RESERVATIONS = """Name|TimeStart|TimeEnd|NodeName|Flags
course of May|7200|10800|n1|IGNORE_JOBS,SPEC_NODES
maint|9000|10800|n1,n2|MAINT,IGNORE_JOBS,SPEC_NODES
"""


@pytest.mark.parametrize(("text", "open_to"), [(SHOWN_RESERVATIONS, {"t1"}), (RECORDED_RESERVATIONS, set())])
def test_reservations_are_read_as_scontrol_and_sacctmgr_print_them(text: str, open_to: set[str]) -> None:
    """Times count from time 0 of the run; dates are of the zone. Maintenance is for nobody's work."""
    course, upkeep = reservations.parse(text, ("n1", "n2"), 3600.0, "Europe/Berlin")
    assert course == Reservation("course of May", 3600.0, 7200.0, 0b01, accounts=frozenset(open_to), unnamed=True)
    assert (upkeep.start_s, upkeep.end_s, upkeep.nodes, upkeep.unnamed) == (5400.0, 7200.0, 0b11, False)
    assert reservations.parse("No reservations in the system", ("n1",), None) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "line 1, 'hello', is no part of a reservation; write the output of"),
        ("ReservationName=r\n   StartTime=1 EndTime=2\n  what", "line 3, 'what', is no part"),
        ("ReservationName=r StartTime=soon EndTime=2 Nodes=n1", "reservation r: starttime 'soon' is no time"),
        ("ReservationName=r StartTime=1 Nodes=n1", "reservation r: endtime '' is no time"),
        (
            "ReservationName=r StartTime=1 EndTime=2 Nodes=n[1-3]",
            "no node is named 'n3'; write the nodes as .* (n1, n2)",
        ),
        ("Name|TimeStart|TimeEnd\nr|1|", "reservation r: endtime '' is no time"),
    ],
)
def test_a_reservation_that_cannot_be_read_is_named(text: str, message: str) -> None:
    """One message with line or reservation, and what to write."""
    with pytest.raises(InputError, match=message.replace("(", r"\(").replace(")", r"\)")):
        reservations.parse(text, ("n1", "n2"), 0.0)


def test_work_that_would_overlap_a_reservation_of_others_does_not_start_on_its_nodes() -> None:
    """Of two nodes one is reserved for tenant t1 from 600 s on: short work passes before it, t1 may use it."""
    held = [Reservation("r", 600.0, 4000.0, 0b01, accounts=frozenset({"t1"}), unnamed=True)]
    rows = [(0.0, 3000.0, 8), (1.0, 100.0, 8), (2.0, 1000.0, 8), (3.0, 1000.0, 8)]
    jobs = make_jobs(rows)
    jobs.limit_s, jobs.tenants, jobs.tenant = [3000.0, 200.0, 1000.0, 1000.0], ["t0", "t1"], [0, 0, 0, 1]
    found = Simulation(inventory(2, 8), jobs, lambda _: Slurm(lambda nodes: Site(nodes, reservations=held))).run()
    starts = found.cluster.first_start_s
    assert starts[1] < 60.0
    assert 100.0 <= starts[3] < 200.0
    assert starts[2] >= 3000.0
