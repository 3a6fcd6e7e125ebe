"""The ground truth of the simulated cluster: hardware, jobs, physics and their published facts.

Contract 3 binds these modules: they share facts and limits with the core, never its decisions.
"""
