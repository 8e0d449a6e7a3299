"""High availability as the API sees it: the leader's gate, a standby's proxy, forwarded identity.

Leader election itself is in `server.ha`.
"""
