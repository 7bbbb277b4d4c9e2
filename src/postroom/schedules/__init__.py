"""Schedules: when they are due (ticks), and how their work is submitted.

The package depends only on contracts.
"""
