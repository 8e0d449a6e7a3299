"""Dynamic Resource Allocation: ResourceClaims of pods, and the devices that they get.

`selectors` evaluates the CEL expressions of claims and device classes, `needs` turns the claims of
a pod into a request to the engine, `allocator` writes allocations. Nothing here chooses GPUs: the
engine does.
"""
