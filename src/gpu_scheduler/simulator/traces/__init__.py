"""Readers and writers of traces: one module for each format, all of them also gzipped.

A file comes in, a `Reading` goes out; bad input raises `InvalidInput` with file and line, and
no partly read trace is returned. Files are written atomically.
"""
