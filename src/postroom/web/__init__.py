"""The pages people look at and work on: templates, static files, page routes."""

from postroom.web.pages import page_routes
from postroom.web.serving import error_page

__all__ = ["error_page", "page_routes"]
