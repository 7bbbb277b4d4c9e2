"""What pages, routes, tools, the command line and chats call: one service for each kind of thing."""
