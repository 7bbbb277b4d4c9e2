"""The pages people look at: templates, static files, page routes."""

from postroom.web.pages import error_page, page_routes

__all__ = ["error_page", "page_routes"]
