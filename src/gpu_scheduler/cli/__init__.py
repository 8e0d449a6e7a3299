"""Commands and output: the place where the parts are joined.

A command parses its arguments, calls one function and renders the answer. Each command is a
module with ``register(parser)`` and ``run(args)``, named in the table of ``cli.main``.
"""
