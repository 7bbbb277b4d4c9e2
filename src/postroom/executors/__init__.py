"""Executors that run agents outside postroom's own agent loop; each kind has its own folder."""
