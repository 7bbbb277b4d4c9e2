"""The pages for people: templates, static files and page routes, which `pages` lists."""
