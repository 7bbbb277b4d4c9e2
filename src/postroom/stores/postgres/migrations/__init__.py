"""The numbered steps of the schema; a released step is never changed."""
