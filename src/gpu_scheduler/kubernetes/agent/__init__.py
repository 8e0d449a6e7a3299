"""The agent on each node of a Kubernetes cluster: reports the GPUs and gives them to containers.

Readings of the device sources (`gpu_scheduler.agent.devices`) go out as the GpuNodeStatus of the
node (`node_status`, `publisher`) and as its ResourceSlice (`resource_slice`). Calls of the kubelet
come in (`device_plugin`, `dra_driver`); CDI specifications go out (`cdi`), which tell the container
runtime what a container gets. The scheduler alone chooses devices: the agent carries its choice
out, and refuses a container for which there is none.
"""
