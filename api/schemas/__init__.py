"""What travels over HTTP: one module a noun, every field described."""
