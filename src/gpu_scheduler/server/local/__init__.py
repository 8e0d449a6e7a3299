"""A scheduler inside a Python program, on the same core, agent and launcher as the server.

`scheduler` is what a program uses, `engine` joins the parts on an event loop of its own, `parts`
are what can be exchanged for tests, `config` and `view` are what goes in and comes out.
"""
