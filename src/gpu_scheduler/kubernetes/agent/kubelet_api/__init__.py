"""The gRPC interfaces of the kubelet that the agent serves and calls.

The `.proto` files hold only the messages and fields that are used; their numbers are the kubelet's,
which ignores what is left out. `make proto` writes their Python form.
"""
