"""High availability: leader election, the lease, the roles of a server, leader and standby."""
