"""What is kept of trials: in a folder or an object store, by one protocol that commits by creation.

`Store` (in `checkpoints`) is what others use. Importing it loads neither torch nor Ray.
"""
