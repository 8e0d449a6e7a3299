"""GPU memory of language models: names, shapes and file headers in; bytes with explanations out.

No I/O: callers read the files.
"""
