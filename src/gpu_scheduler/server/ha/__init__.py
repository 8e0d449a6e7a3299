"""High availability: election, lease, roles of a server, standby, and where agents are sent."""
