"""Persistence: one contract, implemented in memory, with SQLite and with PostgreSQL.

Row types, JSON codecs and queries that the databases share live here; what is specific to one
database lives in its folder, and neither folder imports from the other. No scheduling rules.
"""
