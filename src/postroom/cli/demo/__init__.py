"""`postroom demo`: two real programs fix a small bug, woken by mail, and ask a person before they finish."""
