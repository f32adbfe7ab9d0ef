"""What is kept on disk: run directories and baseline files. Everything a record, every write atomic."""
