"""What is tried next: configurations, samplers, studies in memory, populations, leaders."""
