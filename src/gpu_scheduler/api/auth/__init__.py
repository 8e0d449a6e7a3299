"""Authentication: peer credentials of the kernel, bearer tokens, JWTs, accounts of this machine."""
