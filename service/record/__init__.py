"""The record of experiments in a database: tables, writes, reads and events.

The service's process and every driver's process use it; a driver through `RecordLedger`.
"""
