"""How much GPU memory a language model needs: names, shapes and headers in, bytes and reasons out.

Pure: whoever calls has read the files. Every number comes with the way in which it was found.
"""
