"""The JSON schemas and protobuf messages, and their conversion to and from the model.

Only conversion and validation of single requests; no scheduling rules and no I/O.
"""
