"""Groups of settings as dataclasses: one documented field per setting, and rules within a group.

Rules across groups belong to `server.settings_rules`; nothing here reads a file or a variable.
"""
