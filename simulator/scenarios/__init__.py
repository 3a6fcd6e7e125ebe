"""Scenarios: whole situations as data, read from YAML files, the shipped ones by name."""

from simulator.scenarios.loader import SHIPPED, Scenario, load_scenario, policy_values, scenario_names
from simulator.scenarios.scenario_jobs import FileJobs, JobGroup, SyntheticJobs, scenario_jobs

__all__ = [
    "SHIPPED",
    "FileJobs",
    "JobGroup",
    "Scenario",
    "SyntheticJobs",
    "load_scenario",
    "policy_values",
    "scenario_jobs",
    "scenario_names",
]
