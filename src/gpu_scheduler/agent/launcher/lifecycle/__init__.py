"""One attempt in the launcher, from the start order to the report that nothing of it runs."""
