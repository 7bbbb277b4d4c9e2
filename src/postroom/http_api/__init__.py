"""The HTTP interface: access checks (`guard`), logins (`sessions`), routes for programs (`routes`)."""
