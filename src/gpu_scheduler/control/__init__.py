"""The control core: the only writer of the scheduler's state.

The core is synchronous and does no I/O: a message and the time go in, writes and effects come out.
A driver (the server's `loop`, or the simulator) stores the writes and then carries out the effects.
HTTP, gRPC and agents do not belong here.
"""
