"""Text input and output: tables, colours and JSON; durations, sizes and times.

Nothing here knows jobs or the server.
"""
