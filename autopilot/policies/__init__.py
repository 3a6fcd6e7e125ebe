"""The shipped policies (one YAML file each), and reading and writing of policy files.

The name of a file without its suffix is the name of the policy.
"""
