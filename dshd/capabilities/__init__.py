"""The vocabulary plugins meet in: keys, registries, events and the values that travel between them. No behaviour."""
