"""A simulated world: several servers over one database in one process, in an order that a seed decides."""
