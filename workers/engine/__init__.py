"""What trains many trials side by side on one device: engines and their lanes.

`group` holds trainings of equal shape that join, train side by side and leave; `program` is the
arithmetic of their steps, with `optimizers` and `batches` beside it. `engine` keeps groups on one
device for the trials of many callers, with `turns` for those that cannot share, `errors` for whose
fault an error is, and `occupancy` for how busy the lanes are. `sizing` says how many lanes are
best. `aboard` is what an engine keeps of its trials. `shares` says how trials share an engine.
`runner` trains one trial after another in one process, which `fork_server` forks and `forked`
calls. `trial_process` is the process of a trial as Ray sees it, which has it trained there, in an
engine or in itself, and `actor` is an engine's process. These last two import Ray.
"""
