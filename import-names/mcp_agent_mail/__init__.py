"""The import names of the mail system: `app`, `db`, `config`, `storage`. Every rule lives in `postroom`.

The only module-level state of the tree stands here, since the callers of these names expect it.
"""
