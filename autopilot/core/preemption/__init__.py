"""Victims: which gangs to evict, shrink or move so that a gang can start, and at what cost.

The rule set offers candidates, the search finds the cheapest sufficient set, and a scenario tries it on the what-if.
The modules propose; guards decide.
"""
