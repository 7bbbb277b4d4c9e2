"""The Git archive, which the relay writes, people can read, and a database can be rebuilt from."""
