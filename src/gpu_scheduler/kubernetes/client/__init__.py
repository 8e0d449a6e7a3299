"""A thin asynchronous client of the Kubernetes API.

`configuration` finds the API server and the credentials, `http` sends requests by aiohttp,
`client` offers the operations on typed objects, `errors` is everything that can go wrong.
"""
