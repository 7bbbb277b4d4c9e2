"""`postroom demo`: two real programs build a small shop, task by task, and ask a person to commit it."""
