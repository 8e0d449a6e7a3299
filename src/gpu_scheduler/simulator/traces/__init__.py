"""Readers and writers of traces: one module for each format, all of them also gzipped.

A file comes in, a `Reading` goes out; bad input raises `InvalidInput` with file and line, and
nothing half-read is ever handed on. A written file appears as a whole or not at all.
"""
