"""What the service's process does with Ray: start or join it, and launch drivers."""
