"""What trains many trials side by side on one device: engines and their lanes.

`group` holds trainings of equal shape that join, train side by side and leave; `program` is the
arithmetic of their steps, with `optimizers` and `batches` beside it. `engine` keeps groups on one
device for the trials of many callers, with `turns` for those that cannot share, `errors` for whose
fault an error is, and `occupancy` for how busy the lanes are. `sizing` says how many lanes are
best. `aboard` is what an engine keeps of its trials. `shares` says how trials share an engine,
`trial_process` is the process of a trial, which trains it or, thin, has a seat in an engine,
and `actor` is an engine's process. These last two import Ray.
"""
