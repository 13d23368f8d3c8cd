"""Private training in other frameworks: one module each, which needs that framework installed."""
