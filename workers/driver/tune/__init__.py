"""Ray Tune, bent to the ledger: its loop, search, schedulers, stopper and processes."""
