"""Mail over the named statements of a transaction, on either engine."""
