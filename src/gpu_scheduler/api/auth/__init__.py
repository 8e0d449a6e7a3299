"""Authentication of callers: accounts of this machine, peer credentials, API tokens, JWTs."""
