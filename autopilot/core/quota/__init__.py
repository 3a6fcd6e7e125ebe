"""What queues and tenants hold, are guaranteed and may borrow: the quota ledger, past use, and spending.

The modules keep books over the queue tree. They state numbers; who may start or preempt whom is decided by the rule
sets.
"""
