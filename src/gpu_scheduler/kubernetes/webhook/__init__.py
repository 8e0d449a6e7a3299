"""The admission webhook: new pods of our scheduler get variables that name their GPUs.

`mutation` decides the change, `server` answers the API server, `certificates` makes and renews the
certificates. The API server calls the webhook only for pods of our scheduler, so that an outage
never blocks other pods; a pod of ours is not created meanwhile, because without the variables it
could use every GPU of its node.
"""
