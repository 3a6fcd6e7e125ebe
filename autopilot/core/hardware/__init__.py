"""Facts of NVIDIA hardware: MIG geometry and how to re-cut it, the DCGM vocabulary, and XID errors.

The modules know what hardware allows and reports. They may use types of the model; they know no workload, queue or
policy.
"""
