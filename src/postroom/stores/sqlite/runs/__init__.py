"""Runs in the file that holds the mail: each method of a port is a plain function over a transaction."""
