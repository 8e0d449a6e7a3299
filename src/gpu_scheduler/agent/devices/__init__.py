"""The GPUs of a node: find them, read them, say what is wrong with them.

`detect` chooses a source, `Bounded` keeps a hanging driver away from the agent, `Breaker` holds the
last readings while it fails, and `Watcher` turns readings into telemetry.
"""
