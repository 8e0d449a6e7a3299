"""The store in one SQLite file: opening and migrating it, reading, and the one writer."""
