"""The Kubernetes driver: API objects come in, leases, bindings and statuses go out.

The API server holds all state; there is no second database. Here live the API client, the caches
that follow the API server (`reflector`), leader election by Lease, the typed form of the objects
that a scheduler reads (`objects`), our own resources of the group `gpu.scheduling` (`crds`), and
what translates between objects and the engine.

Scheduling decisions do not live here: the engine makes them. Nothing here uses `control`, `store`
or the REST API. Only what speaks HTTP (`client.http`, processes) imports aiohttp, which the extra
`kubernetes` installs.
"""
