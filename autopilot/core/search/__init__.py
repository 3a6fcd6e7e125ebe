"""The search for victims: which gangs to evict, shrink or move so that a gang can start, and at what cost.

The rule set offers candidates, the search finds the cheapest sufficient set, and a scenario tries it on the what-if.
`scenario.find_scenario` and `moves.moves_only` are the two questions that capabilities ask. The search proposes; guards
decide.
"""
