"""Facts about NVIDIA hardware: MIG geometry, the DCGM fields, and XID errors.

Theory of operation. Each file holds one vocabulary as a table with its source, and small functions over it: dcgm.py
the fields, units and blank values of telemetry; gpu_products.py the names of products; mig_facts.py (generated) and
mig_profiles.py the MIG profiles; mig.py the legal geometries and the change from one to another; xid_facts.py the
remedy for each error; idle_power.py the power of a GPU at rest; takes_work.py the nodes and GPUs open to work. A new
product or code is a row of a table.

These modules may use types of the model. They know no workload, queue or policy.
"""
