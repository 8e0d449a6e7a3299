"""Commands of an administrator: start and stop, settings, database, tokens, audit, demo."""
