"""The groups of settings as dataclasses, one field with its documentation for each setting."""
