"""Public traces: the table behind `autopilot traces list` and docs/data-sources.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TraceKind:
    """One public layout: input and output of `traces import KIND PATH`, and its publisher."""

    kind: str
    what: str
    makes: Literal["jobs", "requests"]
    files: str
    address: str
    licence: str
    citation: str


TRACE_KINDS: dict[str, TraceKind] = {
    entry.kind: entry
    for entry in (
        TraceKind(
            "philly",
            "Microsoft Philly, DNN training jobs of 2017 (about 2,490 GPUs)",
            "jobs",
            "cluster_job_log (JSON); philly.csv of the Sia artifact; an extract in the job format",
            "https://github.com/msr-fiddle/philly-traces and https://github.com/siasosp23/artifacts",
            "CC-BY-4.0",
            "Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, ATC 2019",
        ),
        TraceKind(
            "openb",
            "Alibaba GPU-sharing pods and nodes of 2023 (6,212 GPUs), with a cluster file",
            "jobs",
            "openb_pod_list_*.csv beside openb_node_list_*.csv; an extract in Parquet",
            "https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023",
            "research or study use, please cite (its README)",
            "Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient "
            "Descent, ATC 2023",
        ),
        TraceKind(
            "genai",
            "Alibaba GenTD26, Stable Diffusion requests of 2024",
            "requests",
            "lora_request_trace.csv; an extract in Parquet",
            "https://github.com/alibaba/clusterdata/tree/master/cluster-trace-v2026-GenAI",
            "research or study use, please cite (its README)",
            "Lin et al., Understanding Diffusion Model Serving in Production, SoCC 2025",
        ),
        TraceKind(
            "dlrm",
            "Alibaba recommendation inference instances, 31 days of 2025",
            "jobs",
            "disaggregated_DLRM_trace.csv; an extract in Parquet",
            "https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2025",
            "research or study use, please cite (its README)",
            "Yang et al., GPU-Disaggregated Serving for Deep Learning Recommendation Models at Scale, NSDI 2025",
        ),
        TraceKind(
            "azure-llm",
            "Azure LLM inference requests of 2023 and 2024",
            "requests",
            "AzureLLMInferenceTrace_*.csv; an extract in Parquet",
            "https://github.com/Azure/AzurePublicDataset",
            "CC-BY-4.0",
            "Patel et al., Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024",
        ),
        TraceKind(
            "servegen",
            "Alibaba Model Studio clients in 10-minute windows, drawn into requests by a seed",
            "requests",
            "a folder data/CATEGORY/MODEL with chunk-N-trace.csv and chunk-N-dataset.json; client_windows in Parquet",
            "https://github.com/alibaba/ServeGen",
            "Apache-2.0",
            "Xiang et al., ServeGen: Workload Characterization and Generation of Large Language Model Serving in "
            "Production, NSDI 2026",
        ),
        TraceKind(
            "mooncake",
            "Kimi conversation requests of 2024, with prefix blocks",
            "requests",
            "conversation_trace.jsonl and its siblings; an extract in Parquet",
            "https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces",
            "Apache-2.0",
            "Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025",
        ),
        TraceKind(
            "slurm",
            "Slurm accounting, with declared limits; MIT Supercloud 2021 is the public one",
            "jobs",
            "sacct --parsable2 output; slurm-log.csv of MIT Supercloud; an extract in Parquet",
            "https://github.com/MIT-AI-Accelerator/MIT-Supercloud-Dataset",
            "data free for research, please cite; code and documentation MIT",
            "Samsi et al., The MIT Supercloud Dataset, HPEC 2021",
        ),
    )
}


def catalog_markdown() -> str:
    """The table as Markdown, one row per kind."""
    head = "| kind | what it is | gives | files it reads | publisher | licence | please cite |\n"
    rows = [
        f"| `{entry.kind}` | {entry.what} | {entry.makes} | {entry.files} | {entry.address} | {entry.licence} "
        f"| {entry.citation} |\n"
        for entry in TRACE_KINDS.values()
    ]
    return head + "|---|---|---|---|---|---|---|\n" + "".join(rows)
