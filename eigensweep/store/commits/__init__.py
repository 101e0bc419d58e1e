"""How an attempt commits, and who reads what was committed: heads, curves and checkpoints."""
