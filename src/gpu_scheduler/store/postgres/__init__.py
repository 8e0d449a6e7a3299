"""The store on PostgreSQL, for a cluster: several servers on one database, one of which writes."""
