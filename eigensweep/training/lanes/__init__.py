"""What trains many trials side by side on one device: engines and their lanes.

`group` holds trainings of equal shape that join, train side by side and leave; `program` is the
arithmetic of their steps, with `optimizers`, `batches` and `scoring` beside it, and `graphs`
captures it. An `engine` trains the trials of many callers on one device: `register` knows them,
`turn_loop` lets `groups` train in turn, `commits` has them written, and `faults` judges errors.
`members` is what all of them keep of a trial, `turns` is for those that cannot share, `occupancy`
says how busy lanes are. `sizing` says how many lanes are best, and `outlook` which trials cannot
share. `replicates` has the replicates of one trial side by side in the trial's own process.
"""
