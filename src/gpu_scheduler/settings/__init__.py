"""Settings: their declaration, their sources, and the paths of files.

A file, variables and flags come in; one frozen `schema.Settings` goes out, read once at the start
and passed down. `groups` declares the settings, `catalogue` describes them, `sources` reads them.
What a value means for the scheduler belongs to the package that uses it. This module imports
nothing, because a client needs only `file_paths`.
"""
