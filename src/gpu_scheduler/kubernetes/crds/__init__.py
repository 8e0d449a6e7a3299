"""Our own resources of the group `gpu.scheduling`: claims, node states, queues, reservations.

Each type here is the only source of its form: the program reads and writes objects by it, and
`definition` makes the CustomResourceDefinition from it, with the schema, the validation rules and
the descriptions that `kubectl explain` shows. `make crds` writes them to charts/gpu-scheduler/crds.
"""
