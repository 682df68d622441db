"""What the Python suites share: a server of one's own, a plain HTTP client, a look at processes."""
