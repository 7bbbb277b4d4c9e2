"""Executors that run agents outside the runtime: one folder for each kind."""
