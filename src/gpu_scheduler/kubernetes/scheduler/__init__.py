"""The scheduler process: objects of the API server in, leases, Bindings and statuses out.

Pure, on frozen objects and a given time: `objects_view` (what is read), `filters` (which nodes
Kubernetes allows for a pod), `devices` (GPUs of nodes, and the leases on them), `queues` (GpuQueues
as tenants), `workloads` (pods and claims as jobs), `decision` (objects to engine state to plan, and
the plan checked again), `repair` (what an interrupted scheduler left behind) and `reporting` (what
users read in statuses and events).

With I/O: `writer` (carries out one decision, write by write) and `process` (caches, leader
election, the loop, health and metrics).

The API server holds all state. The order of writes is the safety: all leases of a gang, then its
Bindings, then statuses.
"""
