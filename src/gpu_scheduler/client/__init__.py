"""Talk to a server from outside: what the command line and Python programs use."""
