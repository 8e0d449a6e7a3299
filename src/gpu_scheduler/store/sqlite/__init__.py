"""The store in one SQLite file: opening and migrating it, reads, the writer, copies.

Only what SQLite does differently lives here; the queries are in `store/sql`.
"""
