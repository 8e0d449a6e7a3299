"""Groups of settings as dataclasses: one documented field per setting, and rules within a group."""
