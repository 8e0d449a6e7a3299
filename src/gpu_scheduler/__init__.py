"""A GPU scheduler for a workstation, a cluster, a Kubernetes fleet and a simulator.

The packages and the direction of their imports are described in CONTRIBUTING.md.
Nothing is imported here, so that every command starts fast.
"""

__version__ = "0.1.0"
