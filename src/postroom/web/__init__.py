"""The pages for people: templates, static files and the routes of the pages, which `pages` lists."""
