"""A fleet as the documents of the REST API, so that every command shows it as it shows a server.

Objects of the API server come in (`reading`), jobs, GPUs, nodes and quotas go out (`jobs`,
`devices`). Nothing is decided here: why a pod waits, and when it should start, is what the
scheduler has written into pods and claims.
"""
