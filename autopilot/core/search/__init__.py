"""The search for victims: the gangs to evict, shrink or move for the start of a gang, and their cost.

The rule set offers candidates, the search finds the cheapest sufficient set, and a scenario tries it on the what-if.
Capabilities ask two questions: `scenario.find_scenario` and `moves.moves_only`. The search proposes; guards decide.
"""
