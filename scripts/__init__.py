"""Commands: parse, wire, call."""
