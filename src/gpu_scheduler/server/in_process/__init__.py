"""A scheduler inside a Python program, with the same core, agent and launcher as the server.

`scheduler` is the public interface, `components` connects the components on one event loop, and
`providers` are the parts that a program or test can replace.
"""
