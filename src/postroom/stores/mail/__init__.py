"""Stores mail with the named statements of a transaction, on either engine."""
