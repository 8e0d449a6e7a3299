"""The operations of the REST API, one module for each resource.

A module has a `router`, with which its handlers are registered. A handler parses the request, calls
one function of the control loop or the store, and renders the result.
"""
