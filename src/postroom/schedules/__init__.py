"""Schedules: their ticks, and the submission of their work. The package depends only on contracts."""
