"""`postroom demo`: two real programs mend a small bug, woken by mail, and ask a person before they finish."""
