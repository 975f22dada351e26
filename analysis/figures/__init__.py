"""One picture a file, each with its data; the reports and the single entries show them."""
