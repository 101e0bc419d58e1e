"""What runs in a trial's process, or in a notebook: training, and how Ray Tune calls it.

Only `trainable` imports Ray.
"""
