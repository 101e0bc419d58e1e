"""What runs in the service's process: it starts or joins Ray, and launches drivers."""
