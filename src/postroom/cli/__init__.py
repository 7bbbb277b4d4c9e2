"""The command line: one file for each command group, and the small program that agents start over stdio."""
