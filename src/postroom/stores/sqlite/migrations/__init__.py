"""Numbered, forward-only steps; each runs in one transaction after a backup, and its checksum is stored."""
