"""The set-up of client programs in which agents run: edits of their files, undoing them, and checks."""
