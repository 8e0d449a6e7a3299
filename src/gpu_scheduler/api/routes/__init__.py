"""The operations of the REST API, one module for each resource.

A module has the JSON schemas of its resource and a `router`, with which its handlers are
registered. A handler parses the request, calls one function of the control loop or the store, and
renders the result. What several resources need belongs to `http`, or to `job_views` for jobs.
"""
