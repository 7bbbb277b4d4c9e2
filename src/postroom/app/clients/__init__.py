"""The set-up of clients in which agents run: edits of their files, their removal, and checks."""
