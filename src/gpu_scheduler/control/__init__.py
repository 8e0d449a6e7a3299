"""Act: submit, admit, run the cycle, commit, order, observe, charge. The only writer of state.

The core is synchronous and does no I/O: a command or a fact and the time go in, writes and
effects come out. A shell (the simulator, the server) keeps the writes and carries out the effects.
"""
