"""The namespace tier: kernel namespaces, no capability, a reviewed list of calls."""
