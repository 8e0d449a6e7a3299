"""Commands about the cluster: servers, agents, nodes, GPUs, services, reservations."""
