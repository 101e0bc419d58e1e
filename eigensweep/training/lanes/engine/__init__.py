"""An engine trains the trials of many callers on one device.

`register` knows the trials, `turn_loop` lets `groups` train in turn, `commits` has them written,
and `faults` judges errors. `members` is what all of them keep of a trial, `turns` is for those that
cannot share a program, and `occupancy` says how busy lanes are.
"""
