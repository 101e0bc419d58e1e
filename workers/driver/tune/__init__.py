"""Ray Tune, driven by the ledger: its loop, search, schedulers, stopper and trials' processes."""
