"""Which gang is next: the order between queues, the order inside one, and predicted ends of running work.

Ordering ranks what is pending by policy, age and forecast. It never looks at nodes and books nothing.
"""
