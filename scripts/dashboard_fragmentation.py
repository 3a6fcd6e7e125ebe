"""The dashboard of free capacity and its shape, with the maps of nodes, GPUs and MIG instances."""

from __future__ import annotations

from scripts.dashboard_pages import ALERTS, CLUSTER, NO_CONTROLLER, USED, C, P, by, chosen, limit, lines
from scripts.dashboard_panels import GREEN, RED, Look, Page, Panel, Target, Variable

NODE = Variable(
    "node",
    "Node",
    "Nodes of the maps.",
    f'label_values(gpu_autopilot_node_free_gpus{{{C}, pool=~"$pool"}}, node)',
)
FRAGMENTATION = Page(
    "gpu-autopilot-fragmentation",
    "Fragmentation and MIG",
    "Free capacity that cannot be used, by cause; free GPUs by node; activity of every GPU and MIG instance.",
    (
        lines(
            "Stranded GPUs by cause",
            "Free GPUs that pending work cannot use for their shape, their model or a limit.",
            "none",
            Target(
                f'sum by (cause) (max by (pool, cause) (gpu_autopilot_stranded_gpus{{{P}, demand="pending"}}))',
                "{{cause}}",
            ),
            kind="stacked",
        ),
        lines(
            "Fragmentation index",
            "Share of the free GPUs that the expected mix cannot use.",
            "percentunit",
            Target(by("pool", "fragmentation_ratio", P), "{{pool}}"),
            empty="the demand mix is not known yet",
            look=limit("expected_fragmented_ratio"),
        ),
        lines(
            "Stranded of the expected mix",
            "By cause, at the size of the free capacity.",
            "none",
            Target(
                f'sum by (cause) (max by (pool, cause) (gpu_autopilot_stranded_gpus{{{P}, demand="expected"}}))',
                "{{cause}}",
            ),
            empty="the demand mix is not known yet",
            kind="stacked",
        ),
        lines(
            "Widest gang that fits",
            "Whole GPUs, by GPU model.",
            "none",
            Target(by("gpu_model", "largest_gang_gpus", C), "{{gpu_model}}"),
        ),
        Panel(
            "map",
            "Free GPUs by node",
            "Whole free GPUs of each node that takes work.",
            "none",
            (Target(by("node", "node_free_gpus", f'{P}, node=~"$node"'), "{{node}}"),),
            NO_CONTROLLER,
            look=Look(((1.0, "blue"), (4.0, "light-green"), (8.0, GREEN)), "gray"),
        ),
        Panel(
            "map",
            "GPU and MIG map",
            "SM activity of every GPU and MIG instance, from the exporters.",
            "percentunit",
            (
                Target(
                    "avg by (Hostname, hostname, gpu, GPU_I_PROFILE, GPU_I_ID) "
                    '(DCGM_FI_PROF_SM_ACTIVE{Hostname=~"$node"} or '
                    'DCGM_FI_PROF_SM_ACTIVE{hostname=~"$node", Hostname=""})',
                    "{{Hostname}}{{hostname}} {{gpu}} {{GPU_I_PROFILE}} {{GPU_I_ID}}",
                ),
            ),
            "no DCGM exporter is scraped by this data source",
            look=USED,
        ),
        Panel(
            "table",
            "Changing and failed geometries",
            "GPUs whose MIG geometry changes, failed to, or that are quarantined after a change that went wrong.",
            "none",
            (Target(by("node, state", "node_recut_gpus", C), "GPUs"),),
            "no geometry changes",
            join="node",
            columns=(("state", Look(words=(("failed", "failed", RED), ("quarantined", "quarantined", RED)))),),
        ),
    ),
    (CLUSTER, chosen("pool", "Pool", "gpu_autopilot_pool_capacity_gpus"), NODE),
    ALERTS,
)
