"""Requests other than experiments: analyses, reproductions, and results taken up from files."""
