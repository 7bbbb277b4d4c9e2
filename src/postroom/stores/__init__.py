"""One folder per engine; each engine keeps the promises of `postroom.stores.mail.access`."""
