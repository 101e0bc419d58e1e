"""Checkpoints and curves of trials, in a folder or an object store.

`Store` (in `checkpoints`) is what others use. An attempt commits by creating a file that did not
exist, which only one can. Importing it loads neither torch nor Ray.
"""
