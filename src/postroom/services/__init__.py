"""Services for pages, routes, tools, the command line and chats, one for each kind of thing."""
