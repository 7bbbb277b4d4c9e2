"""Starts the programs that run agents, watches them, and ends them with all their child processes."""
