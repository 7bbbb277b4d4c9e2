"""The numbered, forward-only steps. Each runs in a transaction after a backup, and its checksum is stored."""
