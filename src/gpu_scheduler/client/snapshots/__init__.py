"""Snapshots of code: what a job will run is copied when it is submitted.

`source` says which files belong to the code, `shelf` keeps copies of them, one for each content.
Everything happens as the user who submits, in a directory that belongs to that user alone.
"""
