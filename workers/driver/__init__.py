"""What runs in a driver's process: one experiment, with Ray Tune and Optuna.

`experiment` is where a driver begins and ends, and `sweep` decides what is trained next: in
`search/`, `study` is Optuna's side of it; in `tune/`, `searcher` and `schedulers` are what Ray Tune
calls, and `stopping` says when to stop early; in `nodes/`, `capacity` counts how many trials fit on
the nodes, and `lanes` chooses how many train side by side.
"""
