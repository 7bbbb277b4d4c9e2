"""Runs within a transaction of any engine, with decisions and writes, and the ports that use them."""
