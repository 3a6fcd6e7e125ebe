"""Effects: the proposals that an action may make, and their course until they are done.

Theory of operation. An action submits a draft of a verb. A draft accepted by the planner becomes an instruction, and an
instruction under way is followed until it is done, late or refused (`lifecycle.py`). A start that waits for its victims
is pipelined (`pipelined.py`). One verb is one file with its draft, its change and its operation: the verbs of many
capabilities are here, and the others stand in the room of their capability.
"""
