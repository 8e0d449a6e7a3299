"""The server's side of the agents' protocol: sessions, orders, reports, liveness, logs."""
