"""Stores mail by named statements within a transaction, on every engine."""
