"""What the service remembers: experiments and their trials in a database, analyses in folders.

The service's process and every driver's process use it; drivers write through `RecordLedger`.
"""
