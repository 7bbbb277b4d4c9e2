"""The Git archive that people read: an export of the database, written by the relay, and the way back."""
