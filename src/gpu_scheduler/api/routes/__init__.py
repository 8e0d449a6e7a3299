"""One module for each REST resource: handlers that parse, call one function and render."""
