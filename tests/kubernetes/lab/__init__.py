"""A real Kubernetes on one machine, for tests: no root, no containers, no downloads of binaries.

`build` compiles the programs once from the Go module proxy and keeps them in the user's cache.
`control_plane` starts etcd, kube-apiserver and kube-controller-manager on free ports; `kwok` adds
nodes that pretend to run pods. `fixtures` offers both to pytest and skips, with the reason, where
the programs have not been built. By hand: `python -m tests.kubernetes.lab build|up|down`.
"""
