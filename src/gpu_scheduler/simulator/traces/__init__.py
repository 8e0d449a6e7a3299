"""Readers and writers of traces and of lists of nodes, plain or gzipped.

A file comes in, a `Reading` goes out; bad input raises `InvalidInput` with file and line, and
no partly read trace is returned. Files are written atomically. `detect` chooses the reader by
content. A new format gets a reader here; how jobs run does not belong here.
"""
