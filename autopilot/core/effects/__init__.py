"""Effects: what an action may propose, and what becomes of it.

Theory of operation. An action submits a draft of a verb. What the planner accepts becomes an instruction, and an
instruction under way is followed until it is done, late or refused (`lifecycle.py`). A start that waits for its victims
is pipelined (`pipelined.py`). One verb is one file with its draft, its change and its operation: those that many
capabilities use are here, and the others stand in the room of their capability.
"""
