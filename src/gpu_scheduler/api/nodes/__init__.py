"""The server's side of the agents' protocol: sessions, orders, reports, liveness, streams.

What the agents report goes to the control loop as messages; what it decides goes out as orders.
Nothing here decides where a job runs.
"""
