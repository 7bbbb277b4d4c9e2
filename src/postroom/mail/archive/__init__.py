"""The Git archive, which people can read. The relay exports it, and a database can be rebuilt from it."""
