"""All that one database holds, into another one or into a file, row by row."""
