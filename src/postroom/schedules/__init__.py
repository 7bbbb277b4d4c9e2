"""Schedules, the times when they are due (ticks), and the submission of their work.

The package depends only on contracts.
"""
