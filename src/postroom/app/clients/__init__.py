"""The set-up of the client programs in which agents run: edits of their files, removal, and checks."""
