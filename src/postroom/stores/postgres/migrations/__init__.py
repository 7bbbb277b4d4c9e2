"""The numbered steps of the schema; after a release, a step never changes."""
