"""The command line: one file a command group, and the small entry that agents start over stdio."""
