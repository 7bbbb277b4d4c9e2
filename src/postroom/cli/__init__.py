"""The command line: one module for each command group, and the small program that agents start over stdio."""
