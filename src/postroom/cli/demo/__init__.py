"""`postroom demo`: two real programs write a small shop, task by task, and ask a person to commit it."""
