"""What drivers, trials and the service share: ledger, checkpoints, results.

Importing it loads neither torch nor Ray.
"""
