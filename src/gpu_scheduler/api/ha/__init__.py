"""Requests on several servers: the gate of the leader, the proxy of a standby, forwarded users."""
