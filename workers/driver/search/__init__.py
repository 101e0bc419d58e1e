"""Which configuration is tried next: samplers, studies in memory, populations and races."""
