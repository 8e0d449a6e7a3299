"""What crosses a process boundary: protobuf messages, JSON requests, and their conversion.

JSON schemas are here if other packages than `api` read them; those of one REST resource stand
beside its handlers in `api.routes`. Single requests are validated and converted, nothing else: no
scheduling rules and no I/O.
"""
