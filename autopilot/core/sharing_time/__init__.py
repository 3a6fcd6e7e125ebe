"""Sharing among running gangs: elastic width member by member, and time sharing by index.

The modules propose growth and pauses. Guards and rule sets bind them like every action.
"""
