"""The database: its tables, sessions, transactions, and how rows are walked and copied."""
