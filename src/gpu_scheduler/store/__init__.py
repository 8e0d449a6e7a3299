"""Remember: one contract for what is written, with memory (and later databases) behind it."""
