"""What trains many trials side by side on one device: engines and their lanes.

`stacked` trains lanes as one program, and an `engine` the trials of many callers. `sizing` says how
many lanes are best, and `outlook` which trials cannot share. `replicates` has the replicates of one
trial side by side in the trial's own process.
"""
