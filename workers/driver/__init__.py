"""What runs in a driver's process: one experiment, with Ray Tune and Optuna.

`experiment` is where a driver begins and ends, `sweep` decides what is trained next, `study` is
Optuna's side of it, `searcher` and `schedulers` are what Ray Tune calls, `capacity` counts how many
trials fit on the nodes, `lanes` chooses how many train side by side, and `stopping` says when to
stop early.
"""
