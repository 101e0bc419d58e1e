"""The cluster as the service sees it: a process that starts or joins Ray, and drivers."""
