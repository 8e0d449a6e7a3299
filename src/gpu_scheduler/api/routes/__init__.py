"""The operations of the REST API, one module for each resource.

Each module ends with its `OPERATIONS`. A handler parses the request, calls one function of the
control loop or the store, and renders the result.
"""
