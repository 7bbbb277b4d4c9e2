"""The pages for people: templates, static files and routes. `pages` lists the routes."""
