"""The order of service: between queues, inside one queue, and the predicted ends of running work.

Ordering ranks pending gangs by policy, age and forecast. It never looks at nodes and changes no state of the plan.
"""
