"""What the service, drivers and trials say to each other.

`messages` and `states` are the words, `ledger` is what a driver needs of the record, `shares` and
`fair_shares` say what part of a device or cluster one may have, `code` compares what two processes
run, and `patience` says how long one waits. Importing any of it loads neither torch nor Ray.
"""
