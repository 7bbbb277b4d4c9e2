"""One package per engine; each engine keeps the guarantees that `postroom.stores.mail.access` describes."""
