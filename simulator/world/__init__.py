"""The truth of the simulated cluster: hardware, jobs, physics and the facts that they state.

Contract 3 binds these modules: they share facts and limits with the core, never its judgement.
"""
