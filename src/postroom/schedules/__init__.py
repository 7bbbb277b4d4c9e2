"""Schedules: the times at which they are due (ticks), and the submission of their work.

The package depends only on contracts.
"""
