"""Runs within an open transaction of either engine (decisions and writes), and the ports over a store."""
