"""The choice of nodes for a job, among those fitting its parts."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.baselines.slurm.model import Books, Job
from simulator.baselines.slurm.topology import Tree, within


def choose(
    job: Job, fitting: Sequence[int], books: Books, *, tree: Tree | None, least_loaded: bool
) -> list[int] | None:
    """The nodes of the job, ascending; None if too few fit. `fitting` is ascending."""
    if len(fitting) < job.nodes:
        return None
    if tree is not None:
        return within(tree, fitting, job.nodes)
    if least_loaded:
        return sorted(sorted(fitting, key=lambda node: (-books.cpus[node], node))[: job.nodes])
    return _consecutive(fitting, job.nodes)


def _consecutive(fitting: Sequence[int], needs: int) -> list[int]:
    """The shortest sufficient run of consecutive nodes, first in order; else the longest run first."""
    runs: list[list[int]] = []
    for node in fitting:
        if runs and runs[-1][-1] == node - 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    chosen: list[int] = []
    while len(chosen) < needs:
        left = needs - len(chosen)
        enough = [run for run in runs if len(run) >= left]
        best = min(enough, key=len) if enough else max(runs, key=len)
        chosen += best[:left]
        runs.remove(best)
    return sorted(chosen)
