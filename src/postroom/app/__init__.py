"""The application: its settings, wiring, services and health, and the set-up of clients."""
