"""What runs where a trial is trained, or in a notebook: training.

Inside out: `training` trains one seed with `optimizers`, `schedules`, `evaluation` and `selection`;
`attempt` trains all seeds of a trial from rung to rung and commits, under Ray Tune or in an engine;
`replicates` does the same for a notebook.
"""
