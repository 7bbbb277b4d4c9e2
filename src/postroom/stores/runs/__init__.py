"""Runs over an open transaction of either engine: what is decided and written, and the ports over a store."""
