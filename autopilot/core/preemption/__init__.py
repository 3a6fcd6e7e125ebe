"""Whom to evict, shrink or move so that a gang can start, and at what cost.

Candidates come from the rule set, the search finds the cheapest set that makes room, and the scenario tries it on the
what-if. Everything is rolled back before an action submits its draft.
"""
