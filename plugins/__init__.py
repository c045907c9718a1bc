"""The plugins that come with dshd, one module or package each, imported as `dshd_plugins.<name>`."""
