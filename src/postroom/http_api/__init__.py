"""The HTTP interface: access checks (`guard`), log-ins (`sessions`), and routes for programs (`routes`)."""
