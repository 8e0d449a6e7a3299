"""The store in one SQLite file: opening and migrating it, reads, the writer, copies."""
