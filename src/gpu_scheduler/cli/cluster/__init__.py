"""Commands about the cluster: status, nodes, GPUs, services and reservations.

Each sends a request and renders the answer; commands that start servers and agents are in `admin`.
"""
