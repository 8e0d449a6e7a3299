"""Remember: one contract for what is written, with memory and SQLite behind it."""
