"""The Git archive for people: an export of the database by the relay, and the rebuild from it."""
