"""How capacity is shared among gangs that run already: elastic width in turns, and time slices.

The modules propose who grows and who pauses for whom. Guards and rule sets bind them as they bind every action.
"""
