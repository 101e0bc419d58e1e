"""A driver's process: the zygote that forks it, what it is told, and how it connects to Ray."""
