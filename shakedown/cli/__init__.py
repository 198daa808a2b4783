"""The command: parses, calls one function, prints."""
