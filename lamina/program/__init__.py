"""Programs: what an engine runs: steps over planned buffers."""
