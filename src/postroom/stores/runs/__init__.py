"""Runs within an open transaction of either engine (decisions and writes), and ports based on a store."""
