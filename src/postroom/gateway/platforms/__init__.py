"""What every chat platform's adapter is built on, and the adapters themselves."""
