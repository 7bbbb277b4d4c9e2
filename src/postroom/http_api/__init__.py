"""The HTTP interface: access checks (`guard`), logins (`sessions`), and routes for programs (`routes`)."""
