"""The playground: a simulated cluster behind an API server, with Kueue's rules in charge and the controller beside it.

The world of the simulator is the truth about hardware, jobs and time; the engine `kueue` decides about admission. The
objects of the API server are projected from it. Jobs created by people become submissions, and deleted ones leave the
simulation. See docs/playground.md and decision 0017.
"""
