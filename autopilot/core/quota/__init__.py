"""Quota: what queues and tenants hold, are guaranteed and may borrow.

The quota ledger accounts for the queue tree; past use and spending are kept over time. These modules compute numbers.
The rule sets decide which gang may start and which it may preempt.
"""
