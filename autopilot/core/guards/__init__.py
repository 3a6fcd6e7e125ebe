"""The guards: each one reason to hold a proposal, with a number.

Theory of operation. The planner builds a proposal and asks every guard in `GUARDS`, in order. A guard reads the
proposal, its draft and the context of the tick, and answers with a `Verdict`: allowed or refused, a reason code, a
value, its unit and a threshold. One refusal holds the proposal; the other guards answer all the same, and the record
keeps all verdicts. A guard changes nothing, so its place in the order decides the order of the words alone.

An eviction by contract returns GPUs to their owner. The guards on price and calm waive it: they allow it under the
code `waived_contract` and record the number. The guards on safety (protection, whole gangs, objectives of services)
bind contracts too.

The guards judge a proposal again at the moment of sending (core/decision/sending.py). `draft.resent` then names the
proposal of the first decision, and its own disruptions count once.
"""
