"""Facts about NVIDIA hardware: MIG geometry and re-cutting, the DCGM fields, and XID errors.

These modules know what the hardware allows and reports. They may use types of the model. They know no workload, queue
or policy.
"""
