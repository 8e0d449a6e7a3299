"""The command line. A command parses its arguments, calls one function and renders the answer.

The table of commands is in `cli.main`; each names a module here and its `register` and `run`
functions. No other package imports this one.
"""
