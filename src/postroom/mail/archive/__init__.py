"""The Git archive, which people can read: exported by the relay, and the source for a rebuild."""
