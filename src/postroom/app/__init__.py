"""The application: settings, wiring, services, health, and the set-up of clients."""
