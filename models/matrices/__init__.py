"""Matrices with a property: orthogonal ones, ones of bounded spectral radius, and initial draws."""
