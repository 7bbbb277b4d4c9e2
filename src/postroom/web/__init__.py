"""The pages people look at and work on: templates, static files, page routes. `pages` has the routes."""
