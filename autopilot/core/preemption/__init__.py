"""Victims: the gangs to evict, shrink or move for the start of a gang, and their cost.

The rule set offers candidates, the search finds the cheapest sufficient set, and a scenario tries it on the what-if.
The modules propose; guards decide.
"""
