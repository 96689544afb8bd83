"""Programs: steps over planned buffers, which engines run."""
