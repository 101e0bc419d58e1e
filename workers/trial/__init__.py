"""What runs in a trial's process, or in a notebook: training.

Inside out: `training` trains one seed with `optimizers`, `schedules`, `evaluation` and `selection`;
`attempt` trains all seeds of a trial from rung to rung and commits; `trainable` is how Ray Tune
calls it, and alone imports Ray; `replicates` does the same for a notebook, without Ray.
"""
