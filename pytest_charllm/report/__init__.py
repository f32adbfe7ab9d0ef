"""What people read: one line, one table, the story of a failure, and the same as properties for machines. Pure text."""
