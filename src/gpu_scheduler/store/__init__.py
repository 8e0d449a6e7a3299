"""Remember: one contract for what is written, with memory, SQLite and PostgreSQL behind it."""
