"""Quota: the GPUs of queues and tenants, held, guaranteed and borrowed.

Theory of operation. At each tick `build_ledger` (ledger.py) counts the use of every queue in the tree, from the leaves
to the root, and divides the capacity into fair shares: guarantees first, the rest by weight. Planning then books each
start and stop in the ledger and takes a scenario back by `saved` and `restore`. past_use.py corrects the weights by
the use of past weeks. protection.py tells firm, late and lent work apart, by the guarantee of its queue and the start
of its job. spending.py counts the days of each tenant, for runaway use.

These modules compute numbers. The rule sets (`rules/`) judge starts and victims by them.
"""
