from __future__ import annotations

from math import inf

import pytest

from autopilot.core.errors import InputError
from simulator.baselines import BASELINES
from simulator.cluster import Cluster
from simulator.facts import GpuChanged, NodeChanged, Started, Stopped, Why
from simulator.faults import FateKind, FaultOptions, Faults, child_generator
from simulator.physics import CHARGED
from simulator.simulation import Simulated, Simulation
from tests.unit.cluster_kit import make_jobs, pool, pools


class Watch:
    """Keeps every fact about the hardware and every stop."""

    def __init__(self) -> None:
        self.facts: list[NodeChanged | GpuChanged | Stopped | Started] = []
        self.on_node = self.on_gpu = self.on_stopped = self.on_started = self.facts.append


def faulty(options: FaultOptions, seed: int = 1, nodes: int = 4) -> tuple[Simulated, Watch, Faults]:
    """A day of work on nodes that fail, half of them spot."""
    hardware = pools(
        pool("firm", nodes=nodes // 2, gpus=8), pool("spot", nodes=nodes // 2, gpus=8, spot=True)
    )
    jobs = make_jobs([(600.0 * k, 3000.0 + 500 * (k % 7), (1, 2, 4, 8, 16)[k % 5]) for k in range(120)])
    watch = Watch()
    faults = Faults(options, seed)

    def make(cluster: Cluster) -> object:
        return BASELINES["fifo-skip"]()

    simulation = Simulation(hardware, jobs, make, CHARGED, observers=[watch])  # type: ignore[arg-type]
    faults.arm(simulation.engine, simulation.cluster)
    return simulation.run(), watch, faults


BAD = FaultOptions(node_mtbf_s=20_000, gpu_mtbf_s=200_000, spot_mtbr_s=30_000, until_s=50_000)


def test_faulty_runs_end_with_all_work_done_and_nothing_violated() -> None:
    """Faults stop gangs, cost progress and are mended; then everything that can run has run."""
    simulated, watch, faults = faulty(BAD)
    assert simulated.run.complete
    assert simulated.found.violations == ()
    assert faults.injected > 10
    assert (
        simulated.accounts.faults
        == sum(isinstance(f, Stopped) and f.why == Why.FAULT for f in watch.facts)
        > 0
    )
    assert all(simulated.cluster.hardware.ready)
    assert all(simulated.cluster.hardware.healthy)


def test_one_seed_is_one_run() -> None:
    """The same seed repeats every fact; another one does not."""
    assert faulty(BAD)[1].facts == faulty(BAD)[1].facts
    assert faulty(BAD)[1].facts != faulty(BAD, seed=2)[1].facts


def test_sources_draw_apart() -> None:
    """What one node suffers does not depend on how many others there are."""

    def of_first(nodes: int) -> list[float]:
        facts = faulty(FaultOptions(node_mtbf_s=8_000, until_s=50_000), nodes=nodes)[1].facts
        return [
            fact.at_s
            for fact in facts
            if isinstance(fact, NodeChanged) and fact.node == 0 and fact.at_s < 50_000
        ]

    assert len(of_first(4)) > 1
    assert of_first(4) == of_first(8)
    assert child_generator(1, "a").random() != child_generator(1, "b").random()


def test_a_spot_node_gives_notice() -> None:
    """It is cordoned for the length of the notice, then down, then back; other nodes are left alone."""
    watch = faulty(FaultOptions(spot_mtbr_s=20_000, spot_notice_s=120, until_s=40_000))[1]
    nodes = [fact for fact in watch.facts if isinstance(fact, NodeChanged)]
    assert {fact.node for fact in nodes} <= {2, 3}
    first = nodes[0].node
    notice, down, back = [fact for fact in nodes if fact.node == first][:3]
    assert (notice.ready, notice.cordoned, down.ready, back.ready, back.cordoned) == (
        True,
        True,
        False,
        True,
        False,
    )
    assert down.at_s - notice.at_s == pytest.approx(120, abs=0.001)


def test_effects_and_scrapes_fail_in_the_wished_part() -> None:
    """Fates follow the ratios, repeat by id, and end with the safety phase."""
    faults = Faults(
        FaultOptions(
            scrape_loss_ratio=0.2, conflict_ratio=0.1, failure_ratio=0.2, delay_ratio=0.3, until_s=1e6
        ),
        7,
    )
    fates = [faults.fate(f"effect-{k}", 5.0) for k in range(2000)]
    parts = {kind: sum(fate.kind is kind for fate in fates) / 2000 for kind in FateKind}
    assert parts == pytest.approx(
        {FateKind.DONE: 0.4, FateKind.CONFLICT: 0.1, FateKind.FAILED: 0.2, FateKind.LATE: 0.3}, abs=0.04
    )
    assert all((fate.delay_s > 0) == (fate.kind is FateKind.LATE) for fate in fates)
    assert faults.fate("effect-3", 9.0) == fates[3]
    assert sum(faults.scrape_lost("node-1", float(k)) for k in range(2000)) / 2000 == pytest.approx(
        0.2, abs=0.04
    )
    assert faults.fate("effect-1999", 1e6).kind is FateKind.DONE
    assert not any(faults.scrape_lost("node-1", 1e6 + k) for k in range(50))


@pytest.mark.parametrize(
    ("field", "value"),
    [("node_mtbf_s", -1.0), ("gpu_mttr_s", inf), ("scrape_loss_ratio", 1.5), ("delay_s", float("nan"))],
)
def test_options_out_of_range_are_named(field: str, value: float) -> None:
    """The message names the field and the value."""
    with pytest.raises(InputError, match=f"faults.{field}"):
        FaultOptions(**{field: value})


def test_ratios_that_exceed_one_together_are_refused() -> None:
    """An effect has one fate."""
    with pytest.raises(InputError, match="exceed 1"):
        FaultOptions(conflict_ratio=0.5, failure_ratio=0.4, delay_ratio=0.2)
