"""Sets up the clients that agents run in: edits their configuration files, undoes that, checks it."""
