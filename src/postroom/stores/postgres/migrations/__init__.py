"""The numbered steps by which the schema came about; what was released is never changed."""
