"""What drivers, trials and the service share.

`messages` and `states` are what they say to each other, `ledger` is what a driver needs of the
record, `checkpoints` keeps what training goes on from, `code` compares what two processes run.
Importing any of it loads neither torch nor Ray.
"""
