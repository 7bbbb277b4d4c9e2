"""Stores mail by the named statements of a transaction, on either engine."""
