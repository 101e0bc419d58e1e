"""What results say: statistics, the ranking, races, comparisons, fronts, importance, effort.

The API, its pages, reports, the client and the command line say the same words from these
functions. They are given plain entries, never rows of the record, and importing them loads neither
torch nor Ray nor SQLAlchemy.
"""
