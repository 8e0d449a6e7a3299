"""The scheduler process: objects of the API server in, leases, Bindings and statuses out.

Pure, on frozen objects and a given time: `objects_view` (what is read), `filters` and `volumes`
(which nodes Kubernetes allows for a pod), `devices` (GPUs of nodes, and the leases on them),
`queues` (GpuQueues as tenants), `workloads` (pods and claims as jobs), `decision` (objects to
engine state to plan to assignments), `repair` (what an interrupted scheduler left behind) and
`reporting` (what users read in statuses and events).

With I/O: `writer` (carries out assignments and repairs, write by write), `report_writer` (writes
what users read, beside the cycles), `loop` (caches, cycles) and `__main__` (the process: leader
election, health, metrics).

The API server holds all state. The order of writes is the safety: all leases of a gang, then its
Bindings, then statuses.
"""
