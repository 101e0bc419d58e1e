"""What waits and is started by the service's process: experiments' drivers, and analyses."""
