"""The shipped policies (one YAML file each) and how policy files are written and read.

The name of a file without its ending is the name of the policy.
"""
