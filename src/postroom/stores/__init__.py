"""One folder a backend, all alike: each keeps the promises of `postroom.stores.mail.access`."""
