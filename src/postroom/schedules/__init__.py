"""Schedules: when they are due, and who submits what they say. They know no room but contracts."""
